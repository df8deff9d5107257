#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment, and tests it there: the tests, the
# stubs, the examples, and those of pages. Needs Python 3.11 or newer with its package index.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-../../target/python}

cargo fmt --check
cargo clippy --all-targets -- -D warnings

"$python" -m venv "$work/build"
"$work/build/bin/pip" install --quiet --disable-pip-version-check "maturin==1.16.*"
"$work/build/bin/maturin" build --quiet --release --out "$work/wheels"

# The package as a user gets it: no source folder is near.
"$python" -m venv "$work/use"
"$work/use/bin/pip" install --quiet --disable-pip-version-check "$work"/wheels/*.whl \
    -r tests/requirements.txt
cp -r tests examples pyproject.toml ../../docs/PYTHON.md ../../docs/how-to/from-sorteddict.md ../../data/places.tsv.gz "$work/use/"
cd "$work/use"
bin/python -m pytest -q -p no:cacheprovider tests
bin/python -m mypy --no-error-summary -p ordna
bin/python -m mypy --no-error-summary --strict tests/typed.py
bin/python -m mypy --no-error-summary --strict --scripts-are-modules examples/*.py
for program in tests/typed.py examples/*.py; do
    bin/python "$program"
done
bin/python -m mypy.stubtest --ignore-missing-stub ordna._ordna
bin/python tests/pages.py PYTHON.md from-sorteddict.md
echo "python: all passed"
