// Tests the subset of RediSearch with node-redis' client.ft and a running server: PORT.

import assert from "node:assert/strict";
import { createClient } from "redis";

const client = createClient({ socket: { port: Number(process.argv[2]) } });
await client.connect();
await client.flushAll();
const towns = {
  "town:1": { country: "SE", people: "1515017", tags: "capital,port" },
  "town:2": { country: "SE", people: "608462", tags: "port" },
  "town:3": { country: "NO", people: "580000", tags: "capital,port" },
};
for (const [key, fields] of Object.entries(towns)) {
  assert.equal(await client.hSet(key, fields), 3);
}
assert.deepEqual({ ...(await client.hGetAll("town:3")) }, towns["town:3"]);

const schema = {
  country: { type: "TAG", SORTABLE: true },
  people: { type: "NUMERIC", AS: "n", SORTABLE: true },
  tags: { type: "TAG", SEPARATOR: "," },
};
assert.equal(await client.ft.create("towns", schema, { ON: "HASH", PREFIX: "town:" }), "OK");
await assert.rejects(client.ft.create("towns", schema), /already exists/);
assert.deepEqual(await client.ft._list(), ["towns"]);
let info = await client.ft.info("towns");
while (Number(info.indexing)) info = await client.ft.info("towns");
assert.equal(Number(info.num_docs), 3);

const found = async (query, options) => {
  const { total, documents } = await client.ft.search("towns", query, options);
  return [total, documents.map(({ id }) => id)];
};
const bySize = { SORTBY: { BY: "n", DIRECTION: "DESC" } };
assert.deepEqual(await found("@country:{SE}", bySize), [2, ["town:1", "town:2"]]);
assert.deepEqual(await found("@tags:{cap*} @n:[600000 inf]", { DIALECT: 2 }), [1, ["town:1"]]);
assert.deepEqual(await found("-@country:{SE}"), [1, ["town:3"]]);
assert.deepEqual(await found("*", { ...bySize, LIMIT: { from: 1, size: 1 } }), [3, ["town:2"]]);
const { documents } = await client.ft.search("towns", "@country:{NO}", { RETURN: ["n", "country"] });
assert.deepEqual({ ...documents[0].value }, { n: "580000", country: "NO" });
const names = await client.ft.searchNoContent("towns", "@country:{SE}");
assert.equal(names.total, 2);

await client.hSet("town:4", { country: "NO", people: "7" });
assert.equal((await found("@country:{NO}"))[0], 2);
await client.del("town:4");

const steps = {
  STEPS: [
    {
      type: "GROUPBY",
      properties: "@country",
      REDUCE: [
        { type: "COUNT", AS: "count" },
        { type: "SUM", property: "@n", AS: "sum" },
      ],
    },
    { type: "SORTBY", BY: { BY: "@count", DIRECTION: "DESC" } },
  ],
};
const { results } = await client.ft.aggregate("towns", "*", steps);
assert.deepEqual({ ...results[0] }, { country: "SE", count: "2", sum: "2123479" });
const first = await client.ft.aggregateWithCursor("towns", "*", { LOAD: "@country", COUNT: 2 });
assert.equal(first.results.length, 2);
const rest = await client.ft.cursorRead("towns", first.cursor);
assert.equal(rest.results.length, 1);
assert.match(await client.ft.explain("towns", "@country:{SE}"), /towns\.country/);
assert.equal(await client.ft.alter("towns", { name: { type: "TAG" } }), "OK");
await assert.rejects(client.ft.create("x", { a: { type: "TEXT" } }), /'TEXT' is not supported/);
assert.equal(await client.ft.dropIndex("towns", { DD: true }), "OK");
assert.equal(await client.dbSize(), 0);
client.destroy();
console.log("node-redis: passed");
