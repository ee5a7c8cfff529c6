package wire

import "github.com/troupego/troupe/actors"

// Decode implements actors.Network. The reader decodes in the goroutine of whoever calls it; several readers may be at
// work at once.
func (n *Network) Decode(chunk actors.Chunk) actors.ChunkReader {
	return newChunkReader(chunk, n.decompress, n.memory)
}
