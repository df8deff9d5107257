"""Runs the interactive examples (`pycon`) of pages as they stand. Usage: pages.py PAGE…"""

import doctest
import os
import pathlib
import re
import sys

os.makedirs("data", exist_ok=True)
if os.path.exists("places.tsv.gz"):
    os.replace("places.tsv.gz", "data/places.tsv.gz")
for page in sys.argv[1:]:
    text = pathlib.Path(page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```pycon\n(.*?)^```", text, re.S | re.M)
    assert blocks, f"{page} has no example"
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    outcome = doctest.DocTestRunner().run(test)
    assert outcome.attempted > 5 and outcome.failed == 0, (page, outcome)
    print(f"{page}: {outcome.attempted} examples passed")
