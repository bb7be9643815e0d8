"""Ways to deploy: three addresses, any order, unprivileged on a read-only file system, `baton up`."""
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import time

from harness import BIN, ROOT, Client, Cluster, REAL_MODEL, check, tiny_entry, wait_for, write_tiny_model

PROMPT = list(b"the keeper of the lamp walked up the stair and saw the fog roll in from the sea. " * 8)


def network_namespaces(names):
    """Creates namespaces joined by a bridge; returns {name: address}, or None where not allowed."""
    def ip(*args):
        return subprocess.run(["ip", *args], capture_output=True, text=True)
    if os.geteuid() != 0 or not shutil.which("ip"):
        return None
    bridge = f"bt{os.getpid() % 10000}"
    if ip("link", "add", bridge, "type", "bridge").returncode != 0:
        return None
    ip("addr", "add", "10.77.3.254/24", "dev", bridge)
    ip("link", "set", bridge, "up")
    out = {}
    for i, name in enumerate(names, 1):
        ns, veth = f"{bridge}-{name}", f"v{i}{bridge}"
        steps = [("netns", "add", ns), ("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", ns),
                 ("link", "set", veth, "master", bridge), ("link", "set", veth, "up"),
                 ("-n", ns, "addr", "add", f"10.77.3.{i}/24", "dev", "eth0"), ("-n", ns, "link", "set", "eth0", "up"),
                 ("-n", ns, "link", "set", "lo", "up")]
        for s in steps:
            if ip(*s).returncode != 0:
                remove_namespaces(bridge, names)
                return None
        out[name] = (ns, f"10.77.3.{i}")
    return bridge, out


def remove_namespaces(bridge, names):
    for name in names:
        subprocess.run(["ip", "netns", "del", f"{bridge}-{name}"], capture_output=True)
    subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def scenario_three_addresses_any_order():
    """Hand-written files with fixed ports on three addresses; every order of starting works."""
    names = ["prefill", "decode", "router"]
    made = network_namespaces(names)
    if made:
        bridge, where = made
    else:
        bridge, where = None, {n: (None, f"127.0.0.{i}") for i, n in enumerate(names, 2)}
        print("network namespaces are not allowed here: three loopback addresses instead")
    try:
        orders = list(itertools.permutations(names))
        for order in ([orders[0], orders[3], orders[5]]):
            start_in_order(order, where, bridge is not None)
    finally:
        if bridge:
            remove_namespaces(bridge, names)


def start_in_order(order, where, namespaces):
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=4)
        transport = {"tls": ["tcp"]}
        if namespaces:
            transport["net_devices"] = ["eth0"]
        address = {n: where[n][1] for n in where}

        def listen(n, grpc_port, http_port):
            return {"rpc": {"bind": address[n], "port": grpc_port, "advertise": f"{address[n]}:{grpc_port}"},
                    "http": {"bind": address[n], "port": http_port}}

        def prefix(n):
            return ["ip", "netns", "exec", where[n][0]] if namespaces else []
        model = [tiny_entry(path)]
        nodes = {
            "prefill": c.node("prefill", "prefill", {"models": model, "transport": transport, **listen("prefill", 7101, 7102)},
                              prefix=prefix("prefill")),
            "decode": c.node("decode", "decode", {"models": model, "transport": transport, "handoff": {"min_prefix_tokens": 64},
                                                  **listen("decode", 7201, 7202)}, prefix=prefix("decode")),
            "router": c.node("router", "router", {"nodes": {"decode": [f"{address['decode']}:7201"],
                                                            "prefill": [f"{address['prefill']}:7101"]},
                                                  **listen("router", 7301, 7302)}, prefix=prefix("router")),
        }
        for n in order:
            nodes[n].start(wait=False)
            time.sleep(0.3)  # the order is what is tested
        for n in order:
            nodes[n].wait_ports()
        client = Client(nodes["router"])
        client.wait_ready()
        want = client.generate(PROMPT, strategy="oracle")

        attempts = itertools.count(66)

        def handed_off():
            # Another first token each time: nothing of it is in the decode node's cache.
            got = client.generate([next(attempts)] + PROMPT, strategy="raw", max_tokens=4)
            return got if got.finished.usage.transferred_tokens > 0 else None
        got = wait_for(handed_off, 30, f"a hand-off after starting in the order {order}")
        check(got.finished.timing.lane.startswith("tcp") or "tcp" in got.finished.timing.lane,
              f"the lane is {got.finished.timing.lane}, not tcp")
        check(len(want.ids) == 16, "no answer")


def scenario_unprivileged_read_only():
    """All three daemons run as nobody on a read-only root file system."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        print("needs root and setpriv to drop privileges; checked as the current user only")
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=4)
        for root, dirs, files in os.walk(c.dir):
            for f in files:
                os.chmod(os.path.join(root, f), 0o644)
        os.chmod(c.dir, 0o777)
        prefix = []
        if os.geteuid() == 0 and shutil.which("setpriv"):
            inner = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
            probe = subprocess.run(["unshare", "-m", "sh", "-c", "mount -o remount,bind,ro /"], capture_output=True)
            if probe.returncode == 0:
                # Only the scenario's own folder (for the ports files) stays writable.
                script = (f'mount --bind "{c.dir}" "{c.dir}" && mount -o remount,bind,ro / && exec "$@"')
                prefix = ["unshare", "-m", "sh", "-c", script, "sh", *inner]
            else:
                prefix = inner
                print("read-only mounts are not allowed here: only the user is changed")
        p = c.prefill([tiny_entry(path)], prefix=prefix).start()
        d = c.decode([tiny_entry(path)], prefix=prefix, handoff={"min_prefix_tokens": 64}).start()
        r = c.router([d], [p], prefix=prefix).start()
        client = Client(r)
        client.wait_ready()
        got = client.generate(PROMPT, strategy="raw")
        check(got.finished.usage.transferred_tokens > 0, f"no hand-off: {got.finished.timing.fallback_reason}")


class Up:
    """`baton up` with a file of deploy/config and the real model, until the block ends."""

    def __init__(self, cluster, config, **env):
        self._ports, self._log = cluster.dir / "ports", cluster.dir / "up.log"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen([BIN / "baton", "up", ROOT / "deploy/config" / config, "--ports-file", self._ports],
                                            env={**os.environ, "BATON_QUICKSTART_MODEL": REAL_MODEL, **env}, stderr=log,
                                            stdin=subprocess.DEVNULL)

    def __enter__(self):
        try:
            wait_for(lambda: self._ports.exists() or self.process.poll() is not None, 120, "baton up to be ready")
            check(self.process.poll() is None, f"baton up exited:\n{self.text()}")
        except BaseException:
            self.process.kill()
            raise
        self.router = f"127.0.0.1:{json.loads(self._ports.read_text())['grpc']}"
        return self

    def __exit__(self, kind, value, trace):
        self.process.terminate()
        code = self.process.wait(60)
        check(kind is not None or code == 0, f"baton up exited with {code}")

    def text(self):
        return self._log.read_text(errors="replace")

    def ask(self, *args):
        return subprocess.run([BIN / "baton", "generate", "--router", self.router, "--json", "--max-tokens", "24", *args],
                              capture_output=True, text=True, timeout=120)


def scenario_baton_up():
    """`baton up` with the quick start's file and the real model; the CLI talks to it; a node that dies is restarted."""
    with Cluster() as c, Up(c, "quickstart.yaml") as up:
        def ask():
            return up.ask("--system", "You answer in one short sentence. " * 40, "What is the capital of France?")
        done = ask()
        check(done.returncode == 0, f"baton generate failed: {done.stderr}")
        answer = json.loads(done.stdout)
        check("Paris" in answer["text"], f"not a sensible answer: {answer['text']}")
        check(int(answer["finished"]["usage"]["transferred_tokens"]) > 0, f"no hand-off: {answer['finished']}")
        subprocess.run(["pkill", "-9", "-P", str(up.process.pid), "-f", "baton-decode"], check=True)
        wait_for(lambda: "starting it again" in up.text(), 20, "the supervisor to notice")
        wait_for(lambda: ask().returncode == 0, 60, "an answer after the decode node was restarted")
        bench = subprocess.run([BIN / "baton", "bench", "serve", "--router", up.router, "--requests", "4", "--concurrency", "2",
                                "--prompt-tokens", "200", "--shared-prefix-tokens", "128", "--output-tokens", "8",
                                "--json", c.dir / "bench.json"], capture_output=True, text=True, timeout=120)
        check(bench.returncode == 0, f"bench serve failed: {bench.stdout}{bench.stderr}")
        result = json.loads((c.dir / "bench.json").read_text())
        check(result["ttft"]["count"] == 4 and result["itl"]["count"] == 28, f"odd counts: {result}")


def scenario_shipped_finetunes():
    """The fine-tunes of deploy/models go on from the base's prefill by the codecs beside them."""
    models = ROOT / "deploy/models"
    text = ("Nora Lind has the locker tag HK-482. The morning was grey, and the first visitors came up the path before the gate was "
            "open. Omar Rask has the locker tag amber whistle. ") * 4 + "What is the locker tag of Nora Lind? Reply with the locker tag only."
    names = sorted(f.parent.name for f in models.glob("*/codec.safetensors"))
    check(names, "no codec in deploy/models")
    with Cluster() as c, Up(c, "finetunes.yaml", BATON_MODELS=str(models)) as up:
        for name in names:
            said = {}
            for strategy in ("scd", "raw", "oracle"):
                done = up.ask("--model", name, "--strategy", strategy, text)
                check(done.returncode == 0, f"{name}, {strategy}: {done.stderr}")
                said[strategy] = json.loads(done.stdout)
            timing = {strategy: answer["finished"]["timing"] for strategy, answer in said.items()}
            check(timing["scd"]["strategy"] in ("scd", "reuse"), f"{name}: no codes: {timing['scd']}")
            check(timing["raw"]["strategy"] == "raw" and timing["oracle"]["strategy"] == "oracle", f"{name}: {timing}")
            sent = int(timing["scd"]["handoff_bytes"])
            # raw goes in the nodes' kv_dtype, fp32.
            check(0 < sent <= int(timing["raw"]["handoff_bytes"]) / 16, f"{name}: {sent} bytes of codes, {timing['raw']} of raw")
            if name == "skills":
                check(said["oracle"]["text"].strip() == "HK-482", f"oracle of skills: {said['oracle']['text']}")


def scenario_commands_send_api_keys():
    """Where the router asks for keys, the commands send the one they are given."""
    key, other = "a key of the test", "another"
    with Cluster() as c:
        d = c.decode([tiny_entry(write_tiny_model(c.dir / "model"))], handoff={"strategy": "oracle"}).start()
        digest = hashlib.sha256(key.encode()).hexdigest()
        r = c.router([d], [], auth={"keys": [{"name": "test", "sha256": digest}]}).start()

        def run(*args, env=None):
            return subprocess.run([BIN / "baton", *args, "--router", r.address], capture_output=True, text=True, timeout=60,
                                  env={**os.environ, **(env or {})})

        def ask(*args, env=None):
            return run("generate", "--raw", "--max-tokens", "4", "hello", *args, env=env)
        wait_for(lambda: ask("--api-key", key).returncode == 0, 30, "an answer with the key")
        check(ask(env={"BATON_API_KEY": key}).returncode == 0, "the environment's key was not sent")
        bench = run("bench", "serve", "--requests", "2", "--prompt-tokens", "20", "--output-tokens", "4", "--api-key", key)
        check(bench.returncode == 0, f"bench serve failed: {bench.stdout}{bench.stderr}")
        for args in ((), ("--api-key", other)):
            refused = ask(*args)
            check(refused.returncode == 1 and "UNAUTHENTICATED" in refused.stderr, f"{args}: {refused.stderr}")
        broken = ask("--api-key", key + "\n")
        check(broken.returncode == 1 and "printable" in broken.stderr, f"a line end in the key: {broken.stderr}")
