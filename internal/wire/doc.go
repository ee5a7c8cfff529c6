// Package wire implements the ports of package actors: it talks to brokers, and it decodes what they send.
//
// # Sarama opens, we speak
//
// A connection is made in one way only (dial.go). We dial, by the user's proxy, local address and keep-alive settings, and
// put TLS on top. A sarama.Broker then opens that connection, which authenticates by whatever SASL mechanism the user's
// sarama.Config names, and gives it back (capture.go): the Broker is closed, the connection is not, and nothing of sarama is
// left behind it. We agree on versions ourselves (versions.go) and write and read frames of kmsg (conn.go, frame.go).
//
//	dial -> TLS -> sarama: SASL -> ApiVersions -> requests ... -> closed by us, by the broker, or at 80 % of the
//	                                                              authenticated session's lifetime
//
// A session that has a lifetime (KIP-368) is renewed by making the connection anew between two requests: one way for all
// mechanisms. An idle connection is made anew at its next use, one whose request waits across the end of the session is
// answered as usual, and a SyncGroup after a long JoinGroup goes out on a new one: a member is known by its id, not by its
// connection. A login that a broker refuses is tried again there by one connection at a time and slowly, whoever asks
// (logins.go). SCRAM's client is ours unless the user brings one (scram.go).
//
// # Who owns what
//
// Every client of the ports is one [client]: one connection, dialed at the first request and again after any failure.
// Requests are made one at a time by one goroutine, which blocks; no goroutine waits behind an idle connection. What ends a
// request early closes its connection: the caller's context, the client's Close, or the request's own limit.
//
// # Memory that is used again
//
// A fetch answer is read into a block of the network's pool (pool.go, block.go), shared by the chunks in it. A reader of a
// chunk with Recycle takes its decompressed bytes and its records from there too. Each block counts its readers and goes
// back with the last one, whatever the order and the goroutine; a block that somebody never gives back is left to the
// garbage collector, so that records can be kept for ever where nobody recycles.
//
//	slab -> body of its batch (decompressed) -> pool
//	slab -> the answer (not compressed) <- other chunks of the answer, the reader
//
// # What can go wrong
//
// Before a request is out the error is a kafka.ConnectError naming the phase and which broker's answer named the address
// (origins.go), with a kafka.AuthError below when it is the login, or a kafka.VersionError. After that it is a
// kafka.RequestError: with the broker's code, or Unanswered when a request may have had its effect and no answer told. A
// connection is closed after every error but a code, and after an answer that is not ours: what came after would be off by
// one. Only one failure is not reported: a connection that had served before and is found closed with no byte of answer was
// closed for being idle, and the request is made once more on a new one.
//
// Lengths are not believed: an answer is capped, and memory is taken as its bytes arrive.
package wire
