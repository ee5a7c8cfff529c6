package actors

// authorize reports whether a call may change those partitions.
func (g *group) authorize(*request, []*part) error { return nil }
