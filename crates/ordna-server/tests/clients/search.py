"""The subset of RediSearch through redis-py's client.ft(), against a running server: PORT."""

import sys
import redis
from redis.commands.search.aggregation import AggregateRequest, Cursor, Desc
from redis.commands.search import reducers
from redis.commands.search.field import NumericField, TagField, TextField

try:
    from redis.commands.search.index_definition import IndexDefinition, IndexType
except ImportError:
    from redis.commands.search.indexDefinition import IndexDefinition, IndexType
from redis.commands.search.query import NumericFilter, Query

TOWNS = {
    "town:1": {"country": "SE", "people": 1515017, "tags": "capital,port"},
    "town:2": {"country": "SE", "people": 608462, "tags": "port"},
    "town:3": {"country": "NO", "people": 580000, "tags": "capital,port"},
}


def as_text(value):
    return value.decode() if isinstance(value, bytes) else value


def check(protocol):
    client = redis.Redis(port=int(sys.argv[1]), protocol=protocol, decode_responses=True)
    client.flushall()
    for key, fields in TOWNS.items():
        assert client.hset(key, mapping=fields) == 3
    assert client.hgetall("town:2") == {k: str(v) for k, v in TOWNS["town:2"].items()}
    assert client.hincrby("town:2", "people", 1) == 608463
    assert dict(client.hscan_iter("town:3"))["country"] == "NO"

    towns = client.ft("towns")
    fields = [
        TagField("country", sortable=True),
        NumericField("people", as_name="n", sortable=True),
        TagField("tags", separator=","),
    ]
    definition = IndexDefinition(prefix=["town:"], index_type=IndexType.HASH)
    assert towns.create_index(fields, definition=definition) in ("OK", True)
    try:
        towns.create_index(fields, definition=definition)
        raise AssertionError("a second index of the name")
    except redis.ResponseError as error:
        assert "already exists" in str(error)
    assert list(client.execute_command("FT._LIST")) == ["towns"]
    info = towns.info()
    while int(info["indexing"]):
        info = towns.info()
    assert int(info["num_docs"]) == 3 and info["index_name"] == "towns", info

    def found(query):
        result = towns.search(query)
        if isinstance(result, dict):
            return result["total_results"], [row["id"] for row in result["results"]]
        return result.total, [doc.id for doc in result.docs]

    assert found(Query("@country:{SE}").sort_by("n", asc=False)) == (2, ["town:1", "town:2"])
    assert found(Query("@tags:{cap*} @n:[600000 inf]").no_content()) == (1, ["town:1"])
    assert found(Query("-@country:{SE}").dialect(2)) == (1, ["town:3"])
    assert found(Query("*").paging(1, 1).sort_by("n"))[1] == ["town:2"]
    assert found(Query("*").add_filter(NumericFilter("n", 0, 600000))) == (1, ["town:3"])
    result = towns.search(Query("@country:{NO}").return_field("n", as_field="size"))
    if isinstance(result, dict):
        assert result["results"][0]["extra_attributes"] == {"size": "580000"}, result
    else:
        assert result.docs[0].size == "580000", result

    client.hset("town:4", mapping={"country": "NO", "people": 7})
    assert found("@country:{NO}")[0] == 2, "an update is in the next query"
    client.delete("town:4")
    assert found("@country:{NO}")[0] == 1

    request = (
        AggregateRequest("*")
        .group_by("@country", reducers.count().alias("count"), reducers.sum("@n").alias("sum"))
        .sort_by(Desc("@count"))
    )
    result = towns.aggregate(request)
    if isinstance(result, dict):
        rows = [row["extra_attributes"] for row in result["results"]]
    else:
        rows = [dict(zip(row[::2], row[1::2])) for row in result.rows]
    assert rows[0] == {"country": "SE", "count": "2", "sum": "2123480"}, rows

    request = AggregateRequest("*").load("country").cursor(count=2)
    result = towns.aggregate(request)
    if not isinstance(result, list):
        assert len(result.rows) == 2
        rest = towns.aggregate(Cursor(result.cursor.cid))
        assert len(rest.rows) == 1 and rest.cursor.cid == 0
    assert "towns.country" in as_text(towns.explain("@country:{SE}"))
    assert towns.alter_schema_add([TagField("name")]) in ("OK", True)
    try:
        client.ft("other").create_index([TextField("name")])
        raise AssertionError("a TEXT field")
    except redis.ResponseError as error:
        assert "'TEXT' is not supported" in str(error)
    assert towns.dropindex(delete_documents=True) in ("OK", True)
    assert client.dbsize() == 0
    print(f"redis-py {redis.__version__}, RESP{protocol}: passed")


check(2)
check(3)
