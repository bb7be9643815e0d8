"""Kills, aborts, restarts, two copies on one port."""
import random
import signal
import threading
import time

import grpc

from harness import (Client, Cluster, check, pages_in_use, real_entry, tiny_entry, wait_all_free, wait_for,
                     write_tiny_model)

NO_CACHE = {"engine": {"prefix_cache": False}}
FAST = {"min_prefix_tokens": 64, "timeout": "3s"}
# Codes a client may see while nodes die under it. Anything else, and any hang, is a failure.
CLEAR = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED,
         grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED}


def prompt_of(n, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(97, 123) for _ in range(n)]


def scenario_same_port_twice():
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model")
        for role in ("prefill", "decode"):
            first = c.node(role, f"{role}-1", {"models": [tiny_entry(path)]}).start()
            first.pin_ports()
            second = c.node(role, f"{role}-2", {"models": [tiny_entry(path)], "rpc": {"port": first.ports["grpc"]}})
            second.start(wait=False)
            check(second.process.wait(60) != 0, f"a second {role} on the same port exited with 0")
            check(str(first.ports["grpc"]) in second.log() and "in use" in second.log().lower(),
                  f"the error does not name the port: {second.log()[-500:]}")
            check("memory plan" not in second.log(), "the models were loaded before the port was tried")
            first.http("/health")


def scenario_producer_dies_mid_transfer():
    """The producer is killed by a fault point in the middle of the frames: same tokens, later."""
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=5)
        prompt = prompt_of(1000, 1)
        p = c.prefill([tiny_entry(path)], env={"BATON_FAULTS": "producer.after_layer=kill"}).start()
        d = c.decode([tiny_entry(path)], handoff=FAST, **NO_CACHE).start()
        r = c.router([d], [p]).start()
        client = Client(r)
        client.wait_ready()
        want = client.generate(prompt, strategy="oracle")
        got = client.generate(prompt, strategy="raw")
        check(list(got.ids) == list(want.ids), "other tokens after the producer died")
        check(got.finished.timing.fallback_reason, "the reply does not say that it fell back")
        check(p.process.wait(10) != 0, "the fault point did not kill the producer")
        check(d.metric("baton_handoff_failures_total") >= 1, "no failure was counted")
        wait_all_free([d])


def scenario_second_producer_takes_over():
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=5)
        prompt = prompt_of(600, 2)
        p1 = c.prefill([tiny_entry(path)], name="p1").start()
        p2 = c.prefill([tiny_entry(path)], name="p2").start()
        d = c.decode([tiny_entry(path)], handoff=FAST, **NO_CACHE).start()
        r = c.router([d], [p1, p2]).start()
        client = Client(r)
        client.wait_ready()
        want = client.generate(prompt, strategy="oracle")
        producers = set()
        for i in range(6):
            got = client.generate(prompt, strategy="raw")
            producers.add(got.finished.timing.producer)
            check(list(got.ids) == list(want.ids), "other tokens")
        p1.kill()
        for i in range(4):
            got = client.generate(prompt, strategy="raw")
            check(list(got.ids) == list(want.ids), "other tokens after a producer died")
            check(got.finished.usage.transferred_tokens > 0 or got.finished.timing.fallback_reason, "no reason given")
        check(got.finished.usage.transferred_tokens > 0, "the second producer never took over")


def scenario_producer_restarts_with_another_model():
    with Cluster() as c:
        mine = write_tiny_model(c.dir / "mine", seed=5)
        other = write_tiny_model(c.dir / "other", seed=6, layers=4)
        prompt = prompt_of(500, 3)
        p = c.prefill([tiny_entry(mine)]).start()
        d = c.decode([tiny_entry(mine)], handoff=FAST, **NO_CACHE).start()
        r = c.router([d], [p]).start()
        client = Client(r)
        client.wait_ready()
        want = client.generate(prompt, strategy="raw")
        check(want.finished.usage.transferred_tokens > 0, "nothing was handed off before the restart")
        p.pin_ports()
        p.stop()
        p.config["models"][0]["path"] = other
        p.start()

        def fell_back():
            got = client.generate(prompt, strategy="raw")
            check(list(got.ids) == list(want.ids), "other tokens from the wrong producer")
            check(got.finished.usage.transferred_tokens == 0, "took K/V of another model")
            reason = got.finished.timing.fallback_reason
            return reason if ("layers" in reason or "weights" in reason) else None
        wait_for(fell_back, 20, "an error naming what differs in the space")
        wait_for(lambda: "layers" in r.log() or "layers" in d.log(), 10, "a log that names the field")
        # The right model comes back: no other process needs a restart.
        p.stop()
        p.config["models"][0]["path"] = mine
        p.start()
        wait_for(lambda: client.generate(prompt, strategy="raw").finished.usage.transferred_tokens > 0, 20,
                 "the hand-off to work again")


def scenario_half_open_producer():
    """SIGSTOP: no error ever comes from the network; the progress deadline has to notice."""
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=5)
        p = c.prefill([tiny_entry(path)]).start()
        d = c.decode([tiny_entry(path)], handoff=FAST, **NO_CACHE).start()
        r = c.router([d], [p]).start()
        client = Client(r)
        client.wait_ready()
        prompt = prompt_of(700, 4)
        want = client.generate(prompt, strategy="raw")
        p.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            got = client.generate(prompt_of(700, 4), strategy="raw", timeout=60)
            check(list(got.ids) == list(want.ids), "other tokens")
            check(time.monotonic() - started < 30, "it took too long to notice a stopped producer")
        finally:
            p.process.send_signal(signal.SIGCONT)
        wait_all_free([d])


class Storm:
    """Clients that abort at random moments, and nodes that are killed, until `events` have happened."""

    def __init__(self, client, reference, events, max_tokens, longest_wait):
        self.client, self.reference, self.events = client, reference, events
        self.max_tokens, self.longest_wait = max_tokens, longest_wait
        self.counts = {"answered": 0, "aborted": 0, "refused": 0, "killed": 0}
        self.problems = []
        self.lock = threading.Lock()

    def over(self):
        return self.counts["aborted"] + self.counts["killed"] >= self.events

    def judge(self, n, ids, error, finished, wanted_abort):
        """One request ended: was it an answer or a clear error?"""
        with self.lock:
            if ids != self.reference[n][:len(ids)]:
                self.problems.append(f"prompt of {n}: {ids} is no start of {self.reference[n]}")
            if error is None:
                self.counts["answered"] += 1
                if not finished or len(ids) != len(self.reference[n]):
                    self.problems.append(f"prompt of {n}: ended OK after {len(ids)} tokens")
            elif wanted_abort and error.code() == grpc.StatusCode.CANCELLED:
                self.counts["aborted"] += 1
            elif error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                self.problems.append("a request hung until its deadline")
            elif error.code() in CLEAR and error.details():
                self.counts["refused"] += 1
            else:
                self.problems.append(f"unclear error {error.code()} '{error.details()}'")

    def work(self, seed):
        rng = random.Random(seed)
        while not self.over() and not self.problems:
            n = rng.choice(sorted(self.reference))
            request = self.client.request(prompt_of(n, n), strategy=rng.choice(["raw", "auto", "oracle"]),
                                          max_tokens=self.max_tokens)
            call = self.client.stub.Generate(request, timeout=120)
            timer = None
            if rng.random() < 0.8:
                timer = threading.Timer(rng.uniform(0, self.longest_wait), call.cancel)
                timer.start()
            ids, finished, error = [], False, None
            try:
                for event in call:
                    finished = finished or event.HasField("finished")
                    ids.extend(event.delta.token_ids)
            except grpc.RpcError as e:
                error = e
            if timer:
                timer.cancel()
            self.judge(n, ids, error, finished, timer is not None)

    def run(self, nodes, clients, pause):
        workers = [threading.Thread(target=self.work, args=(s,)) for s in range(clients)]
        for w in workers:
            w.start()
        rng = random.Random(11)
        while any(w.is_alive() for w in workers):
            time.sleep(rng.uniform(*pause))
            if not self.over() and not self.problems:
                victim = rng.choice(nodes)
                victim.kill()
                self.counts["killed"] += 1
                time.sleep(rng.uniform(0, pause[0]))
                victim.start()
        for w in workers:
            w.join()


def chaos(models, events, prompt_tokens, max_tokens, clients, longest_wait, pause, decodes=2):
    with Cluster() as c:
        p = c.prefill(models, name="p", **NO_CACHE).start()
        ds = [c.decode(models, name=f"d{i}", handoff=FAST, **NO_CACHE).start() for i in range(decodes)]
        nodes = [p, *ds]
        for n in nodes:
            n.pin_ports()
        r = c.router(ds, [p]).start()
        client = Client(r)
        client.wait_ready()
        reference = {n: list(client.generate(prompt_of(n, n), strategy="oracle", max_tokens=max_tokens).ids)
                     for n in prompt_tokens}
        storm = Storm(client, reference, events, max_tokens, longest_wait)
        storm.run(nodes, clients, pause)
        print(storm.counts)
        check(not storm.problems, f"{len(storm.problems)} problems, the first: {storm.problems[:3]}")
        check(storm.counts["killed"] > 0 and storm.counts["aborted"] > 0, f"the dice killed or aborted nothing: {storm.counts}")
        client.wait_ready()
        wait_all_free(nodes)
        for n in nodes:
            for held in ("baton_handoff_landing_bytes", "baton_handoff_transfers_live", "baton_prefill_transfers_live"):
                wait_for(lambda n=n, held=held: n.metric(held) == 0, 40, f"{held} of {n.name} to be 0")
        for n in prompt_tokens:
            got = client.generate(prompt_of(n, n), strategy="raw", max_tokens=max_tokens)
            check(list(got.ids) == reference[n], "wrong tokens after the storm")
        wait_for(lambda: r.metric("baton_router_inflight") == 0, 10, "the router to count no requests in flight")


def scenario_chaos_tiny_200():
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=8)
        chaos([tiny_entry(path)], events=200, prompt_tokens=[40, 300, 900, 1800], max_tokens=400, clients=4,
              longest_wait=1.0, pause=(0.2, 0.8))


def scenario_chaos_real_20():
    chaos([real_entry()], events=20, prompt_tokens=[100, 500], max_tokens=24, clients=2, longest_wait=4.0, pause=(2, 5),
          decodes=1)


def scenario_client_goes_away():
    """Aborts at random moments without kills: everything is free again on both nodes."""
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=9)
        p, d, r, client = c.spine([tiny_entry(path)], decode_extra={"handoff": FAST, **NO_CACHE}, prefill_extra=NO_CACHE)
        rng = random.Random(5)
        for i in range(60):
            call = client.stub.Generate(client.request(prompt_of(1500, i), strategy="raw", max_tokens=200), timeout=60)
            time.sleep(rng.uniform(0, 0.15))
            call.cancel()
        wait_all_free([p, d], 10)
        check(len(client.generate(prompt_of(300, 1), strategy="raw").ids) == 16, "no answer after the aborts")
        check(pages_in_use(p) >= 0, "negative pages")


def scenario_drain():
    """SIGTERM: what runs is finished, new work is refused, exit code 0."""
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=9)
        p, d, r, client = c.spine([tiny_entry(path)])
        call = client.stub.Generate(client.request(prompt_of(200, 1), max_tokens=1500), timeout=60)
        first = next(iter(call))
        check(first is not None, "no event")
        d.process.send_signal(signal.SIGTERM)
        count = 0
        for event in call:
            count += len(event.delta.token_ids)
        check(count > 1000, f"the running stream was cut after {count} tokens")
        check(d.process.wait(30) == 0, "the decode node did not exit with 0")
        check(p.stop() == 0 and r.stop() == 0, "a drained node did not exit with 0")
