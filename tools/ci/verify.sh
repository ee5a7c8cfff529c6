#!/usr/bin/env bash
# Checks what a commit must not leave behind: unformatted files, an untidy go.mod, what go vet finds. Changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
failed=0

# Tracked and new files alike, so that it tells before the commit too.
unformatted=$(git ls-files -z --cached --others --exclude-standard '*.go' | while IFS= read -r -d '' file; do
	[[ -f $file ]] && printf '%s\0' "$file"
done | xargs -0 gofmt -l)
if [[ -n $unformatted ]]; then
	printf 'not gofmt-ed:\n%s\n' "$unformatted"
	failed=1
fi
for module in . bench tools; do
	if ! (cd "$module" && go mod tidy -diff); then
		echo "go.mod or go.sum in $module is not tidy"
		failed=1
	fi
done
go vet ./... || failed=1
(cd bench && go vet ./...) || failed=1
exit "$failed"
