package buffer

// Memory is a block of memory that can be used again once nobody reads it any more.
type Memory interface {
	// Recycle gives the block back. It is called at most once.
	Recycle()
}
