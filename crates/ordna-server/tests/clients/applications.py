"""Programs that use Redis, unmodified, against a server: `applications.py NAME PORT`, with a name of `ALL`."""

import os
import subprocess
import sys
import time
from datetime import timedelta

import redis

PORT = int(sys.argv[2])
URL = f"redis://127.0.0.1:{PORT}/0"
os.environ["ORDNA_PORT"] = str(PORT)
client = redis.Redis(port=PORT)


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def rq():
    """Jobs, failures, dependencies, schedules, cancellation; a worker of threads and one of processes. From
    version 1.12 on, rq keeps results in streams, which Ordna does not have.
    """
    import tasks
    from rq import Queue, Retry, SimpleWorker, Worker
    from rq.job import Job
    from rq.registry import FailedJobRegistry, FinishedJobRegistry, ScheduledJobRegistry

    queue = Queue("work", connection=client)
    first = queue.enqueue(tasks.plain_add, 2, 3)
    second = queue.enqueue(tasks.plain_add, 4, 5, depends_on=first)
    failed = queue.enqueue(tasks.plain_fail)
    retried = queue.enqueue(tasks.plain_fail, retry=Retry(max=2))
    later = queue.enqueue_in(timedelta(seconds=1), tasks.plain_add, 6, 7)
    at_front = queue.enqueue(tasks.plain_add, 1, 1, at_front=True)
    assert len(queue) == 4 and queue.job_ids[0] == at_front.id
    assert later in ScheduledJobRegistry(queue=queue)
    SimpleWorker([queue], connection=client).work(burst=True, with_scheduler=False)
    results = [job.result for job in (first, second, at_front)]
    assert results == [5, 9, 2], results
    assert failed.id in FailedJobRegistry(queue=queue).get_job_ids()
    assert retried.get_status(refresh=True) == "failed"
    assert first.id in FinishedJobRegistry(queue=queue).get_job_ids()
    FailedJobRegistry(queue=queue).requeue(failed.id)
    cancelled = queue.enqueue(tasks.plain_add, 1, 2)
    cancelled.cancel()
    assert Job.fetch(cancelled.id, connection=client).get_status() == "canceled"

    # A worker in a separate process, which waits for jobs, with its scheduler.
    worker = subprocess.Popen(
        [sys.executable, "-m", "rq.cli", "worker", "--url", URL, "--with-scheduler", "work"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        cwd=os.path.dirname(os.path.abspath(__file__)),
    )
    try:
        wait_for(lambda: later.get_status(refresh=True) == "finished", 40)
        assert later.result == 13
        waits = queue.enqueue(tasks.plain_slow, 0.2)
        wait_for(lambda: waits.get_status(refresh=True) == "finished")
        assert len(Worker.all(connection=client)) == 1
    finally:
        worker.terminate()
        worker.wait(30)
    assert Worker.all(connection=client) == []


def celery():
    """Broker and results: tasks, retries, chains, groups, chords, delays, revocation, inspection."""
    import tasks
    from celery import chain, chord, group

    def worker(*options):
        return subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-l", "warning", *options],
            cwd=os.path.dirname(os.path.abspath(__file__)),
        )

    for options in (["--pool", "threads", "-c", "4"], ["--pool", "prefork", "-c", "2"]):
        process = worker(*options)
        try:
            assert tasks.add.delay(2, 3).get(timeout=60) == 5
            assert tasks.flaky.delay(1).get(timeout=60) == 2
            try:
                tasks.fails.delay().get(timeout=60)
                raise AssertionError("a failure is reported")
            except ValueError as error:
                assert str(error) == "on purpose"
            assert chain(tasks.add.s(1, 2), tasks.add.s(3))().get(timeout=60) == 6
            many = group(tasks.add.s(n, n) for n in range(20))().get(timeout=60)
            assert many == [2 * n for n in range(20)], many
            header = [tasks.add.s(n, 1) for n in range(10)]
            assert chord(header)(tasks.total.s()).get(timeout=60) == 55
            begin = time.monotonic()
            assert tasks.add.apply_async((1, 1), countdown=1).get(timeout=60) == 2
            assert time.monotonic() - begin > 0.9
            pongs = tasks.app.control.ping(timeout=5)
            assert len(pongs) == 1, pongs
            assert list(tasks.app.control.inspect(timeout=5).stats().values())
            revoked = tasks.add.apply_async((1, 1), countdown=2)
            tasks.app.control.revoke(revoked.id)
            wait_for(lambda: revoked.state == "REVOKED")
            tasks.app.control.purge()
        finally:
            process.terminate()
            process.wait(60)


def dramatiq():
    """Actors, results, pipelines, groups, delays, retries, rate limiters."""
    import dramatiq
    import tasks
    from dramatiq.rate_limits import BucketRateLimiter, ConcurrentRateLimiter
    from dramatiq.rate_limits.backends import RedisBackend

    worker = dramatiq.Worker(tasks.broker, worker_threads=4, worker_timeout=100)
    worker.start()
    try:
        assert tasks.multiply.send(2, 3).get_result(block=True, timeout=20000) == 6
        delayed = tasks.multiply.send_with_options(args=(4, 5), delay=500)
        assert delayed.get_result(block=True, timeout=20000) == 20
        piped = (tasks.multiply.message(2, 3) | tasks.square.message()).run()
        assert piped.get_result(block=True, timeout=20000) == 36
        many = dramatiq.group([tasks.square.message(n) for n in range(20)]).run()
        assert list(many.get_results(block=True, timeout=20000)) == [n * n for n in range(20)]
        tasks.broker.join("default", timeout=20000)
    finally:
        worker.stop()
    backend = RedisBackend(url=URL)
    limiter = ConcurrentRateLimiter(backend, "one", limit=1)
    with limiter.acquire(raise_on_failure=False) as first:
        with limiter.acquire(raise_on_failure=False) as second:
            assert first and not second
    bucket = BucketRateLimiter(backend, "bucket", limit=2, bucket=10_000)
    taken = []
    for _ in range(3):
        with bucket.acquire(raise_on_failure=False) as acquired:
            taken.append(bool(acquired))
    assert taken == [True, True, False], taken


def limits():
    """All strategies of `limits`."""
    from limits import RateLimitItemPerMinute, RateLimitItemPerSecond, storage, strategies

    store = storage.storage_from_string(URL)
    assert store.check()
    for name in ("FixedWindowRateLimiter", "MovingWindowRateLimiter", "SlidingWindowCounterRateLimiter"):
        limiter = getattr(strategies, name)(store)
        per_minute = RateLimitItemPerMinute(3)
        hits = [limiter.hit(per_minute, name, "user") for _ in range(5)]
        assert hits == [True, True, True, False, False], (name, hits)
        assert not limiter.test(per_minute, name, "user")
        stats = limiter.get_window_stats(per_minute, name, "user")
        assert stats.remaining == 0 and stats.reset_time > time.time()
        limiter.clear(per_minute, name, "user")
        assert limiter.hit(per_minute, name, "user")
        per_second = RateLimitItemPerSecond(1)
        assert limiter.hit(per_second, name, "short")
        wait_for(lambda: limiter.hit(per_second, name, "short"), 5)
    store.reset()


def django_redis():
    """django-redis as cache, with locks, sets, hashes; and Django's sessions in it."""
    import django
    from django.conf import settings

    settings.configure(
        CACHES={
            "default": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": URL,
                "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"},
            }
        },
        SESSION_ENGINE="django.contrib.sessions.backends.cache",
        INSTALLED_APPS=["django.contrib.sessions"],
    )
    django.setup()
    from django.contrib.sessions.backends.cache import SessionStore
    from django.core.cache import cache

    cache.set("a", {"b": [1, 2]}, timeout=100)
    assert cache.get("a") == {"b": [1, 2]} and 90 < cache.ttl("a") <= 100
    assert cache.add("a", 1) is False and cache.add("n", 1) is True
    assert cache.incr("n", 4) == 5 and cache.decr("n") == 4
    cache.set_many({f"many:{n}": n for n in range(300)})
    assert len(cache.get_many([f"many:{n}" for n in range(300)])) == 300
    assert len(list(cache.iter_keys("many:*"))) == 300 and len(cache.keys("many:*")) == 300
    assert cache.delete_pattern("many:*") == 300
    assert cache.touch("a", 50) and cache.persist("a") and cache.ttl("a") is None
    assert cache.expire("a", 10) and cache.pttl("a") <= 10_000
    with cache.lock("lock", timeout=5):
        pass
    assert cache.sadd("s", 1, 2, 3) == 3 and cache.scard("s") == 3 and cache.smembers("s") == {1, 2, 3}
    assert cache.sadd("t", 2, 3) == 2 and cache.sinter("s", "t") == {2, 3} and cache.sdiff("s", "t") == {1}
    assert cache.sunion("s", "t") == {1, 2, 3} and cache.sismember("s", 1) and cache.srem("s", 1) == 1
    assert cache.smove("s", "t", 2) and cache.spop("s") == 3
    assert cache.hset("h", "f", 1) == 1 and cache.hexists("h", "f") and cache.hkeys("h") == ["f"]
    assert cache.hlen("h") == 1 and cache.hdel("h", "f") == 1
    session = SessionStore()
    session["user"] = 7
    session.save()
    assert SessionStore(session.session_key)["user"] == 7
    session.flush()
    cache.clear()
    assert cache.get("a") is None


def redis_om():
    """Hash models: save, get, update, expire, find."""
    os.environ["REDIS_OM_URL"] = URL
    from redis_om import Field, HashModel, Migrator, NotFoundError

    class Customer(HashModel, index=True):
        name: str = Field(index=True)
        age: int = Field(index=True, sortable=True)
        bio: str = ""

        class Meta:
            database = redis.Redis(port=PORT, decode_responses=True)

    ada = Customer(name="Ada", age=36)
    ada.save()
    assert Customer.get(ada.pk).age == 36
    ada.update(age=37)
    assert Customer.get(ada.pk).age == 37
    Customer(name="Bob", age=20).save()
    assert len(list(Customer.all_pks())) == 2
    ada.expire(100)
    assert 90 < ada.db().ttl(ada.key()) <= 100
    # See docs/how-to/from-redis.md: redis-om asks whether JSON is supported, and redis-py cannot parse the answer that it is not.
    try:
        Migrator().run()
        Customer.find(Customer.age > 30).all()
    except (AttributeError, TypeError) as error:
        print(f"redis-om's find: {error}", file=sys.stderr)
    else:
        raise AssertionError("find() works: docs/how-to/from-redis.md says that it does not")
    Customer.delete(ada.pk)
    try:
        Customer.get(ada.pk)
        raise AssertionError("it was deleted")
    except NotFoundError:
        pass


ALL = {function.__name__: function for function in (rq, celery, dramatiq, limits, django_redis, redis_om)}
client.flushall()
ALL[sys.argv[1]]()
print(f"{sys.argv[1]}: passed", flush=True)
