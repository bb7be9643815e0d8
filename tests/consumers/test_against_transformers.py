"""The compact Llama against transformers and PEFT on a small random model: logits, loss, gradients.

    PYTHONPATH=scripts python -m unittest discover -s tests/consumers
"""
import importlib.util
import tempfile
import unittest

MISSING = [m for m in ("torch", "transformers", "peft", "gguf", "safetensors") if not importlib.util.find_spec(m)]


@unittest.skipIf(MISSING, f"not installed: {MISSING}")
class AgainstTransformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import torch
        import transformers
        from consumers import adapter, base
        cls.config = base.Config(layers=3, hidden=48, ffn=80, heads=6, kv_heads=2, head_dim=8, vocab=97,
                                 rope_theta=1e4, epsilon=1e-5)
        c = cls.config
        cls.base = base.random_base(c)
        hf = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.ffn, num_hidden_layers=c.layers,
            num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, rms_norm_eps=c.epsilon,
            tie_word_embeddings=True, attention_dropout=0.0)).float()
        state = {"model." + k: v for k, v in cls.base.tensors.items()}
        missing = hf.load_state_dict(state, strict=False)
        assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys, missing
        hf.tie_weights()
        cls.hf = hf
        cls.adapter = adapter.Adapter.fresh(c, seed=3, rank=4, alpha=6)
        g = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, t in cls.adapter.tensors.items():
                if "lora_B" in name:
                    t.copy_(torch.randn(t.shape, generator=g) * 0.2)
        cls.folder = tempfile.TemporaryDirectory()
        adapter.save(cls.adapter, cls.folder.name, torch.float32)
        import peft
        cls.peft = peft.PeftModel.from_pretrained(hf, cls.folder.name, is_trainable=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def document(self, seed, n, branches=()):
        import random

        from consumers.text import Document
        rng = random.Random(seed)

        def some(k):
            return [rng.randrange(self.config.vocab) for _ in range(k)]
        d = Document(some(n), list(range(n)), [0] * n, some(n))
        for b, k in enumerate(branches, start=1):
            d.ids += some(k)
            d.positions += range(n, n + k)
            d.segments += [b] * k
            d.labels += some(k)
            d.skills.append("x")
        return d

    def reference(self, model, document):
        """Sum of cross-entropies: every branch in a run of its own behind the prefix."""
        import torch
        total = 0.0
        for branch in range(0, max(document.segments) + 1):
            rows = [i for i, s in enumerate(document.segments) if s in (0, branch)]
            logits = model(torch.tensor([[document.ids[i] for i in rows]])).logits[0]
            counted = [j for j, i in enumerate(rows) if document.segments[i] == branch]
            labels = torch.tensor([document.labels[rows[j]] for j in counted])
            total = total + torch.nn.functional.cross_entropy(logits[counted], labels, reduction="sum")
        return total

    def test_logits_with_and_without_adapter(self):
        import torch
        from consumers.llama import Llama
        d = self.document(1, 21)
        for kind in ("mkl", "onednn"):
            ours = Llama(self.base, kind)
            with torch.no_grad():
                for lora, model in ((self.adapter, self.peft), (None, self.hf)):
                    h = ours.hidden([(d.ids, d.positions, d.segments, None)], lora)
                    if lora is None:
                        with self.peft.disable_adapter():
                            want = self.peft(torch.tensor([d.ids])).logits[0]
                    else:
                        want = model(torch.tensor([d.ids])).logits[0]
                    # float32 sums of <= 80 terms in another order: a few ulp of values below 10.
                    torch.testing.assert_close(ours.logits(h), want, rtol=2e-5, atol=2e-5)

    def test_loss_and_gradients_of_packed_branches(self):
        import torch
        from consumers.llama import Llama
        documents = [self.document(2, 9, (4, 6, 3)), self.document(3, 15), self.document(4, 7, (5,))]
        ours = Llama(self.base, "onednn")
        loss, count = ours.loss(documents, self.adapter, chunk=8)
        loss.backward()
        self.assertEqual(count, sum(len(d) for d in documents))
        want = sum(self.reference(self.peft, d) for d in documents)
        want.backward()
        self.assertAlmostEqual(loss.item(), want.item(), delta=1e-5 * want.item())
        theirs = {n.replace(".default", ""): p for n, p in self.peft.named_parameters() if "lora_" in n}
        self.assertEqual(sorted(theirs), sorted(self.adapter.tensors))
        for name, t in self.adapter.tensors.items():
            scale = theirs[name].grad.abs().max().item()
            torch.testing.assert_close(t.grad, theirs[name].grad, rtol=0, atol=1e-4 * scale, msg=name)

    def test_a_kept_state_continues_as_one_run_does(self):
        import torch
        from consumers.llama import Llama, State
        d = self.document(6, 12, (5, 4))
        ours = Llama(self.base, train=False)
        n = d.prefix_tokens
        with torch.no_grad():
            whole = ours.hidden([(d.ids, d.positions, d.segments, None)], self.adapter)
            state = State(self.config.layers)
            ours.hidden([(d.ids[:n], d.positions[:n], d.segments[:n], state)], self.adapter)
            rest = ours.hidden([(d.ids[n:], d.positions[n:], d.segments[n:], state)], self.adapter)
        torch.testing.assert_close(rest, whole[n:], rtol=2e-5, atol=2e-5)

    def test_greedy_answers_are_those_of_generate(self):
        import torch
        from consumers import evaluate, llama
        d = self.document(7, 11, (4, 6))
        ours = llama.Llama(self.base, train=False)
        suffixes = [[i for i, s in zip(d.ids, d.segments) if s == b] for b in (1, 2)]
        with torch.no_grad():
            state = evaluate.prefill(ours, self.adapter, d.ids[:11])
            got = evaluate.generate(ours, self.adapter, state, suffixes, limit=9)
            for suffix, answer in zip(suffixes, got):
                ids = torch.tensor([d.ids[:11] + suffix])
                want = self.peft.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=9,
                                          do_sample=False, eos_token_id=2, pad_token_id=0)[0, ids.shape[1]:].tolist()
                self.assertEqual(answer, want[:want.index(2)] if 2 in want else want)

    def test_drift_is_that_of_the_two_models_caches(self):
        import torch
        from consumers import drift, llama
        d = self.document(8, 14, (5,))
        d.labels[:14] = [-1] * 14
        ours = llama.Llama(self.base, train=False)
        with torch.no_grad():
            got = drift.drift(ours, self.adapter, [d])
            own = self.peft(torch.tensor([d.ids[:14]]), use_cache=True).past_key_values
            with self.peft.disable_adapter():
                other = self.peft(torch.tensor([d.ids[:14]]), use_cache=True).past_key_values
            for field, name in (("state_error_k", "keys"), ("state_error_v", "values")):
                for layer, error in enumerate(got[field]):
                    mine, theirs = (getattr(c.layers[layer], name)[0, :, 4:] for c in (own, other))
                    self.assertAlmostEqual(error, ((mine - theirs).norm() / mine.norm()).item(), delta=2e-4)
            self.assertGreater(got["state_error_v"][-1], 0.01)
            log_own = self.peft(torch.tensor([d.ids])).logits[0, 14:].log_softmax(1)
            for mine, theirs in zip(own.layers, other.layers):
                mine.keys[:, :, 4:] = theirs.keys[:, :, 4:]
                mine.values[:, :, 4:] = theirs.values[:, :, 4:]
            raw = self.peft(torch.tensor([d.ids[14:]]), past_key_values=own).logits[0].log_softmax(1)
            kl = (log_own.exp() * (log_own - raw)).sum(1).mean().item()
        self.assertAlmostEqual(got["quality"]["all"]["kl"], kl, delta=2e-4)


if __name__ == "__main__":
    unittest.main()
