package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/IBM/sarama"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// TLS with an authority of the company's own, and SCRAM.
func ExampleWithSaramaConfig() {
	ca, err := os.ReadFile("ca.pem")
	if err != nil {
		fmt.Println("no ca.pem here") // the rest is what a service does
		return
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)

	consumer, err := api.Spawn(context.Background(), api.Config{
		Brokers: []string{"kafka.example.com:9093"},
		GroupID: "billing",
	},
		api.WithSaramaConfig(func(c *sarama.Config) {
			c.Net.TLS.Enable = true
			c.Net.TLS.Config = &tls.Config{RootCAs: roots}
			c.Net.SASL.Enable = true
			c.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA512
			c.Net.SASL.User, c.Net.SASL.Password = "billing", os.Getenv("KAFKA_PASSWORD")
		}),
		api.WithObserver(func(e event.Event) {
			failed, ok := e.(event.ConnectFailed)
			if ok && errors.Is(failed.Err, kafka.SaslAuthenticationFailed) {
				fmt.Println("wrong user or password; trying again in", failed.RetryIn)
			}
		}),
		api.Handle("orders", func(context.Context, *kafka.Record) error { return nil }),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer consumer.Close(context.Background())
	<-consumer.Done()
	// Output: no ca.pem here
}
