package rebalance

import (
	"errors"
	"strings"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestAProtocolMismatchNamesWhatEachSideOffers(t *testing.T) {
	offered := []string{"cooperative-sticky", "range"}
	for want, mismatch := range map[string]ProtocolMismatchError{
		`the group uses "roundrobin"`:                {Type: "consumer", InUse: "roundrobin"},
		`not one of consumers but of type "connect"`: {Type: "connect", InUse: "sessioned"},
		`some member knows none of them`:             {Type: "consumer"},
		`group "g": this member offers`:              {},
	} {
		mismatch.GroupID, mismatch.Offered, mismatch.Err = "g", offered, kafka.InconsistentGroupProtocol
		text := mismatch.Error()
		if !strings.Contains(text, want) || !strings.Contains(text, `["cooperative-sticky" "range"]`) || !errors.Is(&mismatch, kafka.InconsistentGroupProtocol) {
			t.Errorf("%s: want %q", text, want)
		}
		if verdictOf(&mismatch) != verdictSlow {
			t.Error("it may pass, slowly")
		}
	}
}
