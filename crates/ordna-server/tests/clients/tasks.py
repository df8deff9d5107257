"""Tasks of the programs that `applications.py` runs, in a module that their workers import."""

import os
import time

import celery
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

PORT = int(os.environ["ORDNA_PORT"])
URL = f"redis://127.0.0.1:{PORT}/0"

app = celery.Celery("tasks", broker=URL, backend=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    result_expires=60,
    task_acks_late=True,
    worker_send_task_events=True,
)


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self, counter):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task
def fails():
    raise ValueError("on purpose")


broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True, max_retries=3, min_backoff=50, max_backoff=100)
def multiply(a, b):
    return a * b


@dramatiq.actor(store_results=True)
def square(a):
    return a * a


# Names for rq, which imports functions by name.


def plain_add(a, b):
    return a + b


def plain_fail():
    raise ValueError("on purpose")


def plain_slow(seconds):
    time.sleep(seconds)
    return "done"
