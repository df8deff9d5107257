// Tests bee-queue, unmodified: jobs, results, failures, retries, delays, progress, stalled jobs.
import assert from "node:assert/strict";
import Queue from "bee-queue";

const redis = { host: "127.0.0.1", port: Number(process.argv[2]) };
const queue = new Queue("work", { redis, activateDelayedJobs: true, removeOnSuccess: false });
const other = new Queue("work", { redis, isWorker: false, activateDelayedJobs: true });

let tries = 0;
queue.process(4, async (job) => {
  if (job.data.fails) throw new Error("on purpose");
  if (job.data.flaky && ++tries < 3) throw new Error("not yet");
  job.reportProgress({ half: true });
  return job.data.a + job.data.b;
});

const event = (job, name) => new Promise((done) => job.on(name, done));

const job = other.createJob({ a: 2, b: 3 });
const [progress, result] = [event(job, "progress"), event(job, "succeeded")];
await job.save();
assert.deepEqual(await progress, { half: true });
assert.equal(await result, 5);

const failing = other.createJob({ fails: true });
const failure = event(failing, "failed");
await failing.save();
assert.equal((await failure).message, "on purpose");

const flaky = other.createJob({ flaky: true, a: 1, b: 1 }).retries(3);
const late = event(flaky, "succeeded");
await flaky.save();
assert.equal(await late, 2);

const begin = Date.now();
const delayed = other.createJob({ a: 4, b: 4 }).delayUntil(begin + 500);
const then = event(delayed, "succeeded");
await delayed.save();
assert.equal(await then, 8);
assert(Date.now() - begin >= 500);

// Uses events of the queue instead of the jobs, because a job of a pipeline may succeed before the replies with its number.
const results = new Map();
let all;
const done = new Promise((resolve) => (all = resolve));
other.on("job succeeded", (id, result) => {
  results.set(id, result);
  if (results.size === 200) all();
});
const jobs = Array.from({ length: 200 }, (_, n) => other.createJob({ a: n, b: n }));
await other.saveAll(jobs);
await done;
assert.deepEqual(jobs.map((job) => results.get(job.id)), jobs.map((_, n) => 2 * n));
await queue.checkStalledJobs();
const health = await queue.checkHealth();
assert.equal(health.succeeded, 203);
assert.equal(health.failed, 1);
await Promise.all([queue.close(), other.close()]);
console.log("bee-queue: passed");
