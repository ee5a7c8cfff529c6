package archtest

// Module is the path of the module whose packages Table describes.
const Module = "github.com/troupego/troupe"

// Outside packages named in more than one row.
const (
	protoactor = "github.com/asynkron/protoactor-go"
	sarama     = "github.com/IBM/sarama"
	kmsg       = "github.com/twmb/franz-go/pkg/kmsg"
	zap        = "go.uber.org/zap"
)

// anything in a row's Project or Outside allows every package there.
const anything = "*"

// Row says what the packages below one path may import. Paths cover themselves and what is below them.
type Row struct {
	// Path of the package inside the module. The longest path that covers a package decides for it.
	Path string
	// Project lists the paths inside the module it may import. A package may always import below its own path.
	Project []string
	// Outside lists the import paths from other modules it may import.
	Outside []string
	// DeniedStd lists the standard packages it may not import.
	DeniedStd []string
	// AllowedStd are exceptions from DeniedStd, exact paths.
	AllowedStd []string
	// Pure makes CheckPure look into the package.
	Pure bool
}

// deniedToPure keeps the world out of pure packages: the system, other goroutines, clocks behind contexts, logs and
// sources of randomness. math/rand/v2 is let in; CheckPure sees to it that its source is an explicit one.
var deniedToPure = []string{
	"context", "crypto/rand", "embed", "log", "math/rand", "net", "os", "plugin", "runtime", "sync", "syscall", "testing",
	"unsafe",
}

// deniedToLibrary keeps the testing package, and the flags it registers, out of users' binaries.
var deniedToLibrary = []string{"testing"}

// Table is the contract. A package in no row is a violation: a new package gets its row, and a reader of this file
// learns where it stands.
var Table = []Row{
	{Path: "pkg/kafka", DeniedStd: deniedToLibrary},
	{Path: "pkg/event", Project: []string{"pkg/kafka"}, DeniedStd: deniedToLibrary},

	{Path: "rebalance", Project: []string{"pkg/kafka"}, Pure: true, DeniedStd: deniedToPure, AllowedStd: []string{"math/rand/v2"}},
	{Path: "commit", Project: []string{"pkg/kafka"}, Pure: true, DeniedStd: deniedToPure, AllowedStd: []string{"math/rand/v2"}},
	{Path: "internal/capability", Project: []string{"pkg/kafka"}, Pure: true, DeniedStd: deniedToPure, AllowedStd: []string{"sync/atomic"}},
	{Path: "internal/buffer", Project: []string{"pkg/kafka"}, Pure: true, DeniedStd: deniedToPure, AllowedStd: []string{"math/rand/v2"}},
	{
		// The simulation drives the pure packages and is as pure as they are; only its command sees a clock.
		Path:    "internal/sim",
		Project: []string{"pkg/kafka", "rebalance", "commit", "internal/capability", "internal/buffer"},
		Pure:    true, DeniedStd: deniedToPure, AllowedStd: []string{"math/rand/v2"},
	},
	{Path: "internal/sim/troupesim", Project: []string{"internal/sim"}},

	{Path: "supervisor", Project: []string{"pkg/kafka"}, Outside: []string{protoactor, zap}, DeniedStd: deniedToLibrary},
	{
		Path:      "actors",
		Project:   []string{"pkg/kafka", "pkg/event", "rebalance", "commit", "internal/capability", "internal/buffer", "supervisor"},
		Outside:   []string{protoactor, zap},
		DeniedStd: deniedToLibrary,
	},
	{
		// Of actors it may use the port types; that they are ports is for the reviewer, that no arrow points back is not.
		// Of franz-go it may use the frames, never the client.
		Path:    "internal/wire",
		Project: []string{"pkg/kafka", "rebalance", "commit", "internal/buffer", "actors"},
		Outside: []string{
			sarama, kmsg, "github.com/klauspost/compress", "github.com/pierrec/lz4", "github.com/golang/snappy",
			"github.com/eapache/go-xerial-snappy", "github.com/rcrowley/go-metrics", "golang.org/x/net/proxy",
		},
		DeniedStd: deniedToLibrary,
	},
	{
		Path: "pkg/api",
		Project: []string{
			"pkg/kafka", "pkg/event", "rebalance", "commit", "internal/capability", "internal/buffer", "supervisor",
			"actors", "internal/wire",
		},
		Outside:   []string{protoactor, zap, sarama},
		DeniedStd: deniedToLibrary,
	},
	{
		Path:    "pkg/kafkatest",
		Project: []string{"pkg/kafka", "pkg/event", "pkg/api", "actors", "rebalance", "supervisor"}, // RunHandler runs a handler as a partition does
		Outside: []string{
			protoactor, zap, "github.com/rcrowley/go-metrics", "github.com/twmb/franz-go/pkg/kfake", "github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/kerr",
			kmsg, sarama,
		},
	},

	// Examples show what a user can write, so they see what a user sees: of actors, what handlers and Close deal with.
	{
		Path:      "examples",
		Project:   []string{"pkg/kafka", "pkg/event", "pkg/api", "pkg/kafkatest", "rebalance", "commit", "supervisor", "actors"},
		Outside:   []string{anything},
		DeniedStd: deniedToLibrary,
	},
	{Path: "integration", Project: []string{anything}, Outside: []string{anything}},
	{
		// The simulation of the whole stack has tests only; the row is for what might be beside them.
		Path:    "internal/stacksim",
		Project: []string{"pkg/kafka", "pkg/event", "pkg/api", "pkg/kafkatest", "actors", "rebalance", "commit", "supervisor"},
		Outside: []string{anything},
	},
	{Path: "internal/archtest"},
	{Path: "internal/docs"},
}

// Expected are the packages that must exist: without this list a package that was moved away would leave its row
// behind, guarding nothing.
var Expected = []string{
	"pkg/kafka", "pkg/event", "rebalance", "commit", "internal/capability", "internal/buffer", "internal/sim", "internal/stacksim", "supervisor", "actors",
	"internal/wire", "pkg/api", "pkg/kafkatest", "examples/minimal", "examples/quickstart",
	"examples/actorhandler", "examples/keyorder", "examples/asyncack", "examples/rebalance", "integration",
}
