package launch

import (
	"fmt"
	"regexp"
	"strconv"
)

// version is an Apache Kafka release.
type version struct{ major, minor, patch int }

var versionPattern = regexp.MustCompile(`^(\d{1,3})\.(\d{1,3})\.(\d{1,3})$`)

// oldestVersion is the first release the launcher's recipe was measured with; older ones lack properties it sets.
var oldestVersion = version{3, 7, 0}

// parseVersion reads "4.4.0". Anything else is an error, because the text goes into a Maven coordinate and a path.
func parseVersion(text string) (version, error) {
	match := versionPattern.FindStringSubmatch(text)
	if match == nil {
		return version{}, fmt.Errorf("version %q: want MAJOR.MINOR.PATCH such as %s", text, DefaultVersion)
	}
	var parts [3]int
	for i := range parts {
		parts[i], _ = strconv.Atoi(match[i+1]) // the pattern admits only short digit runs
	}
	parsed := version{parts[0], parts[1], parts[2]}
	if parsed.less(oldestVersion) {
		return version{}, fmt.Errorf("version %s is older than %s, the oldest this launcher can start", parsed, oldestVersion)
	}
	return parsed, nil
}

// String is MAJOR.MINOR.PATCH.
func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.patch) }

func (v version) less(other version) bool {
	if v.major != other.major {
		return v.major < other.major
	}
	if v.minor != other.minor {
		return v.minor < other.minor
	}
	return v.patch < other.patch
}

var javaVersionPattern = regexp.MustCompile(`version "(\d+)(?:\.(\d+))?([^"]*)"`)

// parseJavaVersion reads the first line of `java -version`: the feature release (8 for "1.8.0_402") and the full text.
func parseJavaVersion(output string) (feature int, full string, err error) {
	match := javaVersionPattern.FindStringSubmatch(output)
	if match == nil {
		return 0, "", fmt.Errorf("no version in the output of java -version: %q", output)
	}
	number := match[1]
	if number == "1" && match[2] != "" { // up to Java 8 the feature release came second
		number = match[2]
	}
	if feature, err = strconv.Atoi(number); err != nil {
		return 0, "", fmt.Errorf("java -version: %w", err)
	}
	full = match[1]
	if match[2] != "" {
		full += "." + match[2]
	}
	return feature, full + match[3], nil
}
