package launch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cacheLayout is part of the cache's path: raise it when what is kept there changes shape.
const cacheLayout = "2"

// metaProperties is the file that makes a data folder belong to one node of one cluster.
const metaProperties = "meta.properties"

// distribution is one Kafka version, ready to run on this machine. Everything in its folder is complete once it has its
// name: it is built under another name and renamed.
//
//	libs/                  the jars
//	template/              a formatted data folder, never started
//	template-USERS/        the same with SCRAM credentials, one per set of users that was asked for
//	classes-JAVA.jsa       archive of loaded classes for that Java version; optional
type distribution struct {
	version version
	dir     string
	java    javaRuntime
}

func (d *distribution) libs() string     { return filepath.Join(d.dir, "libs") }
func (d *distribution) template() string { return filepath.Join(d.dir, "template") }
func (d *distribution) archive() string {
	return filepath.Join(d.dir, "classes-"+d.java.version+".jsa")
}
func (d *distribution) classPath() string { return filepath.Join(d.libs(), "*") }

// kafkaArguments is the command line of a node, measured to start in half the time and a third less memory than the
// plain one: serial collector and first compiler tier cost less than they gain on a short life.
func (d *distribution) kafkaArguments(heapMiB int, extraFlags []string, propertiesFile string) []string {
	arguments := []string{
		"-Xms32m", "-Xmx" + strconv.Itoa(heapMiB) + "m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
	}
	if len(extraFlags) == 0 && exists(d.archive()) {
		arguments = append(arguments, "-XX:SharedArchiveFile="+d.archive())
	}
	arguments = append(arguments, extraFlags...)
	return append(arguments, "-cp", d.classPath(), "kafka.Kafka", propertiesFile)
}

// cacheRoot is the folder that holds one folder per Kafka version.
func cacheRoot() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	return filepath.Join(base, "troupe", "kafka-"+cacheLayout), nil
}

// prepare returns a distribution with everything it needs in the cache. One test binary at a time builds, the others
// wait for it.
func prepare(ctx context.Context, version version, log func(string, ...any)) (*distribution, error) {
	root, err := cacheRoot()
	if err != nil {
		return nil, err
	}
	dist := &distribution{version: version, dir: filepath.Join(root, version.String())}
	if dist.java, err = findJava(ctx); err != nil {
		return nil, dist.alsoMissing(err)
	}
	if dist.complete() {
		return dist, nil
	}
	if err := os.MkdirAll(dist.dir, 0o755); err != nil {
		return nil, fmt.Errorf("cache folder: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(dist.dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := dist.clearUnfinished(); err != nil {
		return nil, err
	}
	if err := dist.fetchJars(ctx, log); err != nil {
		return nil, fmt.Errorf("jars: %w", err)
	}
	if err := dist.formatTemplate(ctx, dist.template(), nil, log); err != nil {
		return nil, fmt.Errorf("format a data folder: %w", err)
	}
	if err := dist.archiveClasses(ctx, log); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		log("no archive of loaded classes, nodes start slower: %v", err)
	}
	return dist, nil
}

func (d *distribution) complete() bool {
	return exists(d.libs()) && exists(d.template()) && exists(d.archive())
}

// alsoMissing adds Maven to an error that says Java is missing, if it will be needed and is missing too: whoever reads
// it should have to install things only once.
func (d *distribution) alsoMissing(err error) error {
	var unavailable, maven *UnavailableError
	if !errors.As(err, &unavailable) || exists(d.libs()) {
		return err
	}
	if _, mavenErr := findMaven(); errors.As(mavenErr, &maven) {
		unavailable.Missing = append(unavailable.Missing, maven.Missing...)
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

const buildingPrefix = "building-"

// clearUnfinished removes what a run that was killed while preparing left behind. Called with the lock held.
func (d *distribution) clearUnfinished() error {
	left, err := filepath.Glob(filepath.Join(d.dir, buildingPrefix+"*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// building makes a fresh folder inside the distribution's, with a name nothing else uses, and removes it when the
// returned function is called; what is to stay has been renamed away by then.
func (d *distribution) building() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp(d.dir, buildingPrefix)
	if err != nil {
		return "", nil, err
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}

// projectFile asks Maven for the broker, the tools (StorageTool and the console clients) and a logger that needs no
// configuration file.
const projectFile = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>troupe</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>%[1]s</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>%[1]s</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
`

// otherLoggers are left out: Kafka 3 brings one of them, and with two on the class path it is chance which one gets the
// broker's words; without its configuration file that one drops them.
const otherLoggers = "slf4j-reload4j,slf4j-log4j12,log4j-slf4j-impl,log4j-slf4j2-impl"

// fetchJars resolves the jars once per version.
func (d *distribution) fetchJars(ctx context.Context, log func(string, ...any)) error {
	if exists(d.libs()) {
		return nil
	}
	maven, err := findMaven()
	if err != nil {
		return err
	}
	work, remove, err := d.building()
	if err != nil {
		return err
	}
	defer remove()
	started := time.Now()
	log("fetching the jars of Kafka %s by Maven (once)", d.version)
	project := fmt.Sprintf(projectFile, d.version)
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), []byte(project), 0o600); err != nil {
		return err
	}
	jars := filepath.Join(work, "libs")
	if _, err := run(ctx, work, maven, "-q", "-B", "dependency:copy-dependencies",
		"-DoutputDirectory="+jars, "-DincludeScope=runtime", "-DexcludeArtifactIds="+otherLoggers); err != nil {
		return err
	}
	if err := os.Rename(jars, d.libs()); err != nil {
		return err
	}
	log("fetched the jars of Kafka %s in %.1f s", d.version, time.Since(started).Seconds())
	return nil
}

// templateFor returns the template that knows the SCRAM credentials of the secured cluster, made when first asked for.
// What a node is formatted with is there before its first listener opens.
func (d *distribution) templateFor(ctx context.Context, security *security, log func(string, ...any)) (string, error) {
	credentials := security.scramCredentials()
	if len(credentials) == 0 {
		return d.template(), nil
	}
	key := sha256.Sum256([]byte(strings.Join(credentials, "\n")))
	template := d.template() + "-" + hex.EncodeToString(key[:8])
	if exists(template) {
		return template, nil
	}
	unlock, err := lockFile(ctx, filepath.Join(d.dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := d.clearUnfinished(); err != nil {
		return "", err
	}
	return template, d.formatTemplate(ctx, template, credentials, log)
}

// formatTemplate lets Kafka's own tool format a data folder, which every node's is a copy of. The credentials are in
// the form its option --add-scram takes.
func (d *distribution) formatTemplate(ctx context.Context, template string, credentials []string, log func(string, ...any)) error {
	if exists(template) {
		return nil
	}
	work, remove, err := d.building()
	if err != nil {
		return err
	}
	defer remove()
	started := time.Now()
	plans, err := planNodes(1, Options{}.listeners())
	if err != nil {
		return err
	}
	data, properties := filepath.Join(work, "data"), filepath.Join(work, "format.properties")
	text := renderProperties(serverProperties(plans[0], plans, data, nil))
	if err := os.WriteFile(properties, []byte(text), 0o600); err != nil {
		return err
	}
	arguments := []string{"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", d.classPath(),
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"kafka.tools.StorageTool", "format", "-t", newUUID(), "-c", properties}
	for _, credential := range credentials {
		arguments = append(arguments, "--add-scram", credential)
	}
	if _, err := run(ctx, work, d.java.path, arguments...); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(data, metaProperties)); err != nil {
		return err
	}
	// A folder with nothing but meta.properties would start, with KIP-848 and share groups silently switched off.
	if entries, err := os.ReadDir(data); err != nil || len(entries) == 0 {
		return errors.Join(errors.New("the tool wrote no bootstrap records"), err)
	}
	if err := os.Rename(data, template); err != nil {
		return err
	}
	log("formatted a data folder for Kafka %s in %.1f s", d.version, time.Since(started).Seconds())
	return nil
}

// archiveTimeout bounds the one start that records the classes, including writing them out at its end.
const archiveTimeout = 3 * time.Minute

// archiveClasses runs a node until it is ready and lets the JVM write the classes it has loaded to a file that later
// starts map instead of parsing the jars.
func (d *distribution) archiveClasses(ctx context.Context, log func(string, ...any)) error {
	if exists(d.archive()) {
		return nil
	}
	work, remove, err := d.building()
	if err != nil {
		return err
	}
	defer remove()
	ctx, cancel := context.WithTimeout(ctx, archiveTimeout)
	defer cancel()
	started := time.Now()
	plans, err := planNodes(1, Options{}.listeners())
	if err != nil {
		return err
	}
	recorder := &Cluster{version: d.version.String(), dir: work}
	node := &Node{plan: plans[0], dist: d, cluster: recorder}
	recorder.nodes = []*Node{node}
	properties := renderProperties(serverProperties(plans[0], plans, node.dataDir(), nil))
	if err := node.prepare(d.template(), newUUID(), properties); err != nil {
		return err
	}
	file := filepath.Join(work, "classes.jsa")
	if err := node.launch([]string{"-XX:ArchiveClassesAtExit=" + file}); err != nil {
		return err
	}
	defer func() { _ = node.Kill() }()
	if err := recorder.AwaitReady(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, node.logTail())
	}
	if err := node.Signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-node.Done():
	case <-ctx.Done():
		return fmt.Errorf("waiting for the JVM to write it: %w", ctx.Err())
	}
	if err := os.Rename(file, d.archive()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the JVM wrote none: %s", strings.TrimSpace(node.logTail()))
		}
		return err
	}
	log("archived the classes of Kafka %s in %.1f s", d.version, time.Since(started).Seconds())
	return nil
}
