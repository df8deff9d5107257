"""Runs README's "Python in one minute" as it stands. Usage: readme.py README.md"""

import doctest
import os
import pathlib
import re
import sys

text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
section = re.search(r"^## Python in one minute\n(.*?)^## ", text, re.S | re.M)
assert section, "README has no section 'Python in one minute'"
blocks = re.findall(r"^```pycon\n(.*?)^```", section[1], re.S | re.M)
assert blocks, "the section has no example"
os.makedirs("data", exist_ok=True)
if os.path.exists("places.tsv.gz"):
    os.replace("places.tsv.gz", "data/places.tsv.gz")
test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "README.md", "README.md", 0)
outcome = doctest.DocTestRunner().run(test)
assert outcome.attempted > 5 and outcome.failed == 0, outcome
print(f"README: {outcome.attempted} examples of Python passed")
