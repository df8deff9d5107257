// Tests Bull, unmodified: jobs, results, failures, retries, delays, repeated jobs. Also BullMQ, which needs streams.
import assert from "node:assert/strict";
import Bull from "bull";
import { Queue } from "bullmq";

const redis = { host: "127.0.0.1", port: Number(process.argv[2]) };
const queue = new Bull("work", { redis });

let tries = 0;
queue.process(4, async (job) => {
  if (job.data.fails) throw new Error("on purpose");
  if (job.data.flaky && ++tries < 3) throw new Error("not yet");
  await job.progress(50);
  return job.data.a + job.data.b;
});

assert.equal(await (await queue.add({ a: 2, b: 3 })).finished(), 5);
await assert.rejects((await queue.add({ fails: true })).finished(), /on purpose/);
assert.equal(await (await queue.add({ flaky: true, a: 1, b: 1 }, { attempts: 3 })).finished(), 2);
const begin = Date.now();
assert.equal(await (await queue.add({ a: 4, b: 4 }, { delay: 500 })).finished(), 8);
assert(Date.now() - begin >= 500);
const many = Array.from({ length: 100 }, (_, n) => ({ data: { a: n, b: n }, opts: { priority: 1 + (n % 3) } }));
const jobs = await queue.addBulk(many);
assert.deepEqual(await Promise.all(jobs.map((job) => job.finished())), jobs.map((_, n) => 2 * n));
const counts = await queue.getJobCounts();
assert.deepEqual([counts.completed, counts.failed, counts.waiting], [103, 1, 0]);
await queue.close();

// According to docs/how-to/from-redis.md, this does not work.
const other = new Queue("other", { connection: redis });
other.on("error", () => {});
const outcome = await other.add("job", {}).then(() => "works", (error) => String(error));
assert.match(outcome, /unknown command 'xadd'|Ordna has no streams|Unknown Redis command/i);
console.log("bull: passed");
process.exit(0);
