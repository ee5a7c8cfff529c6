package kafka

import "strconv"

// ErrorCode is an error code of the Kafka protocol. It is an error itself, so errors.Is(err, kafka.UnknownMemberID) holds
// for every error that wraps the code. Codes newer than this library are kept as numbers.
type ErrorCode int16

// ErrorFromCode returns nil for code 0 and the code as an error otherwise.
func ErrorFromCode(code int16) error {
	if code == 0 {
		return nil
	}
	return ErrorCode(code)
}

// Name returns Kafka's name of the code, such as "UNKNOWN_MEMBER_ID", or "UNKNOWN_ERROR_CODE" for one that is not known.
func (c ErrorCode) Name() string {
	if info, ok := codeTable[c]; ok {
		return info.name
	}
	return "UNKNOWN_ERROR_CODE"
}

// Retriable reports whether the protocol says that the same request may succeed later. Unknown codes are not retriable.
func (c ErrorCode) Retriable() bool { return codeTable[c].retriable }

// Error returns the name and the number, such as "UNKNOWN_MEMBER_ID (25)".
func (c ErrorCode) Error() string {
	return c.Name() + " (" + strconv.Itoa(int(c)) + ")"
}
