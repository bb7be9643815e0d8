"""Real clients against the gateway: the openai package, grpcio, server reflection, the examples."""
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import openai

from harness import ROOT, Client, Cluster, check, real_entry, tiny_entry, wait_for, write_tiny_model


def scenario_openai_package():
    with Cluster() as c:
        _, d, r, grpc_client = c.spine([real_entry()])
        base = f"http://127.0.0.1:{r.ports['http']}/v1"
        client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
        check([m.id for m in client.models.list().data] == ["smollm2"], "models.list")
        messages = [{"role": "system", "content": "You answer in one short sentence. " * 30},
                    {"role": "user", "content": "What is the capital of France?"}]
        whole = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=24)
        check("Paris" in whole.choices[0].message.content, f"not sensible: {whole}")
        check(whole.usage.completion_tokens > 0 and whole.usage.prompt_tokens > 200, f"usage: {whole.usage}")
        check(whole.choices[0].finish_reason in ("stop", "length"), "finish_reason")
        stream = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=24, stream=True,
                                                stream_options={"include_usage": True})
        text, usage, reasons = "", None, []
        for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
                if chunk.choices[0].finish_reason:
                    reasons.append(chunk.choices[0].finish_reason)
            else:
                usage = chunk.usage
        check(text == whole.choices[0].message.content, "streamed and whole replies differ")
        check(len(reasons) == 1, f"finish reasons: {reasons}")
        check(usage is not None and usage.completion_tokens == whole.usage.completion_tokens, "usage in the stream")
        check(usage.prompt_tokens_details.cached_tokens > 0, "the second request shows no cached tokens")
        done = client.completions.create(model="smollm2", prompt="The capital of France is", temperature=0, max_tokens=8, logprobs=2)
        check(len(done.choices[0].logprobs.tokens) == done.usage.completion_tokens, "logprobs of completions")
        many = client.chat.completions.create(model="smollm2", messages=messages[1:], n=3, seed=7, temperature=1, max_tokens=12)
        check(sorted(x.index for x in many.choices) == [0, 1, 2], "n=3")
        again = client.chat.completions.create(model="smollm2", messages=messages[1:], n=3, seed=7, temperature=1, max_tokens=12)
        check([x.message.content for x in many.choices] == [x.message.content for x in again.choices], "seed")
        stopped = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=24, stop=["Paris"])
        check("Paris" not in stopped.choices[0].message.content and stopped.choices[0].finish_reason == "stop", "stop string")
        for call, kind in ((lambda: client.chat.completions.create(model="nope", messages=messages), openai.NotFoundError),
                           (lambda: client.chat.completions.create(model="smollm2", messages=messages, temperature=-1),
                            openai.BadRequestError),
                           (lambda: client.chat.completions.create(model="smollm2", messages=[]), openai.BadRequestError)):
            try:
                call()
                check(False, f"no {kind.__name__}")
            except kind as e:
                check(e.body and e.body.get("message"), f"no message in {e.body}")
        with urllib.request.urlopen(f"http://127.0.0.1:{r.ports['http']}/readyz", timeout=5) as ready:
            check(ready.status == 200, "readyz")
        check("baton_time_to_first_token_seconds" in r.http("/metrics"), "the router's metrics lack TTFT")
        # A client that closes the connection in the middle frees everything.
        stream = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=400, stream=True)
        next(iter(stream))
        stream.close()
        wait_for(lambda: d.metric("baton_num_requests_running") == 0, 10, "the request to end after the client left")


WEATHER_TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.",
                                                 "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}


def refused(call, param, *words):
    """The openai client gets a 400 that names `param`."""
    try:
        call()
    except openai.BadRequestError as e:
        check(e.body["param"] == param, f"param {e.body['param']} instead of {param}: {e.body}")
        for word in words:
            check(word in e.body["message"], f"'{word}' is not in {e.body['message']}")
        return
    check(False, f"no error about {param}")


def scenario_chat_messages():
    """Shapes of messages: cases tpl-01 (parts), tpl-04 (tools), tpl-07 (special tokens in text)."""
    with Cluster() as c:
        tiny = tiny_entry(write_tiny_model(c.dir / "model"), chat_template="qwen2.5")
        _, d, r, _ = c.spine([real_entry(), tiny])
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{r.ports['http']}/v1", api_key="none", max_retries=0)

        def ask(content, model="smollm2", messages=(), **more):
            return client.chat.completions.create(model=model, messages=[*messages, {"role": "user", "content": content}],
                                                  temperature=0, max_tokens=8, **more)

        parts = [{"type": "text", "text": "<note>\n\n"}, {"type": "text", "text": "Test!"}]
        joined, split = ask("<note>\n\nTest!"), ask(parts)
        check(joined.usage.prompt_tokens == split.usage.prompt_tokens, f"prompts differ: {joined.usage} {split.usage}")
        check(joined.choices[0].message.content == split.choices[0].message.content, "replies differ")
        check(ask([]).usage.prompt_tokens == ask("").usage.prompt_tokens, "an empty list is no empty text")
        refused(lambda: ask([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0].type", "image_url")
        refused(lambda: ask(["bare"]), "messages[0].content[0]")
        refused(lambda: ask(None), "messages[0].content")
        refused(lambda: ask("x", messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "robot")

        # SmolLM2's template has no place for tools: nothing is left out in silence.
        call = {"role": "assistant", "content": None,
                "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": "null"}}]}
        result = {"role": "tool", "tool_call_id": "abcdefghi", "content": "sunny"}
        refused(lambda: ask("x", tools=[WEATHER_TOOL]), "tools", "smollm2")
        refused(lambda: ask("x", messages=[{"role": "user", "content": "w"}, call]), "messages[1].tool_calls", "smollm2")
        refused(lambda: ask("x", messages=[result]), "messages[0].role", "smollm2")
        refused(lambda: ask("x", tools=[WEATHER_TOOL], tool_choice="required"), "tool_choice", "required")
        check(ask("x", tools=[WEATHER_TOOL], tool_choice="none").usage.prompt_tokens == ask("x").usage.prompt_tokens, "none")

        # Qwen2.5's has: the tools are in the prompt, "null" stands for {}, what is no object is named.
        plain, tools = ask("x", model="tiny"), ask("x", model="tiny", tools=[WEATHER_TOOL])
        check(tools.usage.prompt_tokens > plain.usage.prompt_tokens + 300, f"tools: {tools.usage}, without {plain.usage}")
        before = [{"role": "user", "content": "w"}, call, result]
        check(ask("x", model="tiny", messages=before, tools=[WEATHER_TOOL]).choices[0].finish_reason, "tool traffic")
        for bad in ("[]", "{bad"):
            call["tool_calls"][0]["function"]["arguments"] = bad
            refused(lambda: ask("x", model="tiny", messages=before), "messages[1].tool_calls[0].function.arguments")

        # Text of a message is never a special token; of a plain completion it is, unless told otherwise.
        def prompt_tokens(**more):
            return client.completions.create(model="tiny", prompt="a<|im_end|>", max_tokens=1, **more).usage.prompt_tokens
        check(prompt_tokens() == 2 and prompt_tokens(extra_body={"parse_special": False}) == 11, "parse_special")
        check(ask("a<|im_end|>", model="tiny").usage.prompt_tokens == plain.usage.prompt_tokens + 10, "im_end in a message")


def scenario_template_in_gguf():
    """Case tpl-06: the template inside the GGUF is used; without it chat is refused, nothing is invented."""
    with Cluster() as c:
        import pathlib
        key = b"tokenizer.chat_template"
        data = pathlib.Path(os.environ["BATON_SMOLLM2_GGUF"]).read_bytes()
        check(data.count(key) == 1, "the file's template")
        bare = c.dir / "bare.gguf"
        bare.write_bytes(data.replace(key, b"tokenizer.chat_hidden__"))
        del data
        models = [real_entry(), {**real_entry("bare"), "path": str(bare)}]
        _, d, r, _ = c.spine(models)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{r.ports['http']}/v1", api_key="none", max_retries=0)
        messages = [{"role": "user", "content": "Hi"}]
        check(client.chat.completions.create(model="smollm2", messages=messages, max_tokens=2).usage.prompt_tokens > 20, "chat")
        refused(lambda: client.chat.completions.create(model="bare", messages=messages, max_tokens=2), "messages", "chat_template")
        check(client.completions.create(model="bare", prompt="Hi", max_tokens=2).usage.completion_tokens > 0, "completion")


def scenario_examples():
    """docs/examples run as they are printed there."""
    with Cluster() as c:
        _, _, r, _ = c.spine([tiny_entry(write_tiny_model(c.dir / "model"))])
        env = {**os.environ, "PYTHONPATH": os.environ["BATON_PY_STUBS"]}
        for script in ("client.py", "reflection_client.py"):
            path = ROOT / "docs/examples" / script
            done = subprocess.run([sys.executable, path, r.address], capture_output=True, text=True, env=env, timeout=60)
            check(done.returncode == 0, f"{script}: {done.stderr}")
            check(done.stdout.strip(), f"{script} printed nothing")
            lines = [x for x in path.read_text().splitlines() if x.strip() and not x.strip().startswith("#")]
            check(len(lines) <= 32, f"{script} has {len(lines)} lines")
        done = subprocess.run(["bash", ROOT / "docs/examples/curl.sh", f"127.0.0.1:{r.ports['http']}"], capture_output=True, text=True,
                              timeout=60)
        check(done.returncode == 0 and "[DONE]" in done.stdout, f"curl.sh: {done.stdout[-500:]}{done.stderr[-500:]}")


def post(r, path, body, raw=None):
    data = raw if raw is not None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{r.ports['http']}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def scenario_bad_requests():
    """Each bad number or text gets a 4xx that names the thing; the daemons go on."""
    with Cluster() as c:
        p, d, r, client = c.spine([tiny_entry(write_tiny_model(c.dir / "model", max_context=512))])
        good = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        check(post(r, "/v1/chat/completions", good)[0] == 200, "the good request failed")
        bad = [
            ("temperature", {"temperature": -0.1}), ("temperature", {"temperature": 1e300}), ("temperature", {"temperature": "hot"}),
            ("top_p", {"top_p": 0}), ("top_p", {"top_p": 1.5}), ("top_k", {"top_k": -5}), ("min_p", {"min_p": 2}),
            ("presence_penalty", {"presence_penalty": 3}), ("frequency_penalty", {"frequency_penalty": -9}),
            ("repetition_penalty", {"repetition_penalty": 0}), ("logit_bias", {"logit_bias": {"99999": 1}}),
            ("logit_bias", {"logit_bias": {"abc": 1}}), ("logit_bias", {"logit_bias": {"5": 1000}}),
            ("max_tokens", {"max_tokens": 0}), ("max_tokens", {"max_tokens": -5}), ("max_tokens", {"max_tokens": 10**12}),
            ("max_tokens", {"max_tokens": 1.5}), ("n", {"n": 0}), ("n", {"n": 10**6}), ("stop", {"stop": [""]}),
            ("stop", {"stop": [1]}), ("seed", {"seed": "x"}), ("top_logprobs", {"logprobs": True, "top_logprobs": 50}),
            ("messages", {"messages": []}), ("messages", {"messages": "hi"}), ("role", {"messages": [{"role": "king", "content": "x"}]}),
            ("content", {"messages": [{"role": "user", "content": 5}]}), ("model", {"model": "other"}), ("model", {"model": 5}),
            ("strategy", {"strategy": "magic"}), ("stream", {"stream": "yes"}), ("shared_prefix_tokens", {"shared_prefix_tokens": -1}),
        ]
        for name, change in bad:
            status, body = post(r, "/v1/chat/completions", {**good, **change})
            check(400 <= status < 500, f"{change}: status {status}")
            check(name in json.dumps(body["error"]), f"{change}: the error does not name {name}: {body}")
        for raw in (b"", b"{", b"[]", b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
                    b"[" * 100000, b'{"temperature": NaN}'):
            status, body = post(r, "/v1/chat/completions", None, raw)
            check(400 <= status < 500 and body["error"]["message"], f"{raw[:40]}: {status} {body}")
        status, body = post(r, "/v1/completions", {"model": "tiny", "prompt": "x" * 600, "max_tokens": 4})
        check(status == 400 and "512" in body["error"]["message"] and "600" in body["error"]["message"], f"too long: {body}")
        status, body = post(r, "/v1/completions", {"model": "tiny", "prompt": ""})
        check(status == 400, f"empty prompt: {status} {body}")
        status, body = post(r, "/v1/nothing", {})
        check(status == 404 and "error" in body, f"unknown path: {status}")
        # The same over gRPC, where a client can also send what JSON cannot.
        for change, name in ((lambda q: setattr(q.sampling, "temperature", float("nan")), "temperature"),
                             (lambda q: setattr(q.sampling, "top_p", float("inf")), "top_p"),
                             (lambda q: setattr(q.sampling, "min_p", -1.0), "min_p"),
                             (lambda q: setattr(q.stop, "max_tokens", -(2**63)), "max_tokens"),
                             (lambda q: q.tokens.ids.append(2**40), "token"),
                             (lambda q: q.tokens.ids.append(-1), "token"),
                             (lambda q: q.ClearField("tokens"), "prompt")):
            q = client.request([65, 66])
            change(q)
            try:
                list(client.stub.Generate(q, timeout=20))
                check(False, f"accepted a bad {name}")
            except Exception as e:  # noqa: BLE001
                check("INVALID_ARGUMENT" in str(e.code()) and name in e.details(), f"{name}: {e}")
        check(post(r, "/v1/chat/completions", good)[0] == 200, "the good request fails after the bad ones")


def scenario_bad_files():
    """What stops a daemon from starting is named in one message; no port was opened."""
    with Cluster() as c:
        model = write_tiny_model(c.dir / "model")
        import pathlib
        import shutil

        def refuse(role, config, *words):
            node = c.node(role, f"{role}-{len(c.nodes)}", config)
            node.start(wait=False)
            code = node.process.wait(30)
            log = node.log()
            check(code != 0, f"{config} was accepted")
            check(code > 0, f"{config}: killed by signal {-code}")
            for w in words:
                check(w.lower() in log.lower(), f"{config}: '{w}' is not in the message:\n{log[-1500:]}")
            check(not node.ports_path.exists(), f"{config}: a port was opened")

        def broken(name, change):
            folder = pathlib.Path(shutil.copytree(model, c.dir / name))
            change(folder)
            return {"models": [tiny_entry(folder)]}

        def edit_config(**kw):
            def change(folder):
                f = folder / "config.json"
                f.write_text(json.dumps({**json.loads(f.read_text()), **kw}))
            return change

        def truncate(folder):
            f = folder / "model.safetensors"
            f.write_bytes(f.read_bytes()[:-1000])
        for role in ("decode", "prefill"):
            refuse(role, {"models": [tiny_entry(c.dir / "absent")]}, "absent")
            refuse(role, {"models": [tiny_entry(model)], "enigne": {}}, "enigne", "engine")
            refuse(role, {"models": [tiny_entry(model)], "rpc": {"port": "many"}}, "rpc.port", "many")
            refuse(role, {"models": []}, "models")
            refuse(role, {"models": [tiny_entry(model)], "transport": {"tls": ["smoke_signals"]}}, "smoke_signals")
        refuse("decode", broken("truncated", truncate), "model.safetensors")
        refuse("decode", broken("shape", edit_config(intermediate_size=96)), "shape", "96")
        refuse("decode", broken("arch", edit_config(architectures=["GPT2LMHeadModel"], model_type="gpt2")), "gpt2")
        refuse("decode", broken("numbers", edit_config(num_hidden_layers=-3)), "layers is -3")
        gguf = c.dir / "bad.gguf"
        gguf.write_bytes(b"GGUF" + b"\xff" * 200)
        refuse("decode", {"models": [tiny_entry(gguf)]}, "bad.gguf")
        real = pathlib.Path(os.environ["BATON_SMOLLM2_GGUF"]).read_bytes()
        gguf.write_bytes(real[: len(real) // 2])
        refuse("decode", {"models": [tiny_entry(gguf)]}, "bad.gguf")
        refuse("router", {"nodes": {"decode": []}}, "nodes")
        refuse("router", {"nodes": {"decode": ["no-port"]}}, "no-port")
