"""A run that is killed and resumed ends in the same adapter, byte for byte."""
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

MISSING = [m for m in ("torch", "safetensors") if not importlib.util.find_spec(m)]


def train(out, kill_at=None):
    """Six steps or so of a small random model on random documents, a checkpoint after every other."""
    import random

    import torch
    from consumers import base, batches, llama, recipes
    from consumers import train as training
    from consumers.text import plain_document
    torch.set_num_threads(1)
    config = base.Config(layers=2, hidden=32, ffn=48, heads=4, kv_heads=2, head_dim=8, vocab=61, rope_theta=1e4,
                         epsilon=1e-5)

    def document(i):
        rng = random.Random(i)
        return plain_document([rng.randrange(61) for _ in range(rng.randrange(10, 30))])
    recipe = recipes.Recipe(rate=1e-2, step_tokens=100, micro_tokens=60, tokens=600, sources="", task="")
    run = training.Run(out, llama.Llama(base.random_base(config)), batches.Generated(document), recipe, seed=1,
                       identity={}, report=lambda *_: None)
    checkpoint = run.checkpoint

    def every_other():
        if run.progress.step % 2 == 0 or run.progress.tokens >= recipe.tokens:
            checkpoint()

    def report(progress, *_):
        if progress.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    run.checkpoint, run.report = every_other, report
    run.resume()
    run.train(checkpoint_seconds=0)


@unittest.skipIf(MISSING, f"not installed: {MISSING}")
class Resume(unittest.TestCase):
    def run_it(self, out, kill_at):
        return subprocess.run([sys.executable, __file__, str(out), str(kill_at)], check=False).returncode

    def test_a_killed_run_goes_on_exactly(self):
        with tempfile.TemporaryDirectory() as folder:
            whole, killed = pathlib.Path(folder) / "whole", pathlib.Path(folder) / "killed"
            self.assertEqual(self.run_it(whole, 0), 0)
            self.assertEqual(self.run_it(killed, 5), -signal.SIGKILL)  # one step past a checkpoint
            self.assertFalse((killed / "adapter_model.safetensors").exists())
            self.assertEqual(self.run_it(killed, 0), 0)
            names = sorted(p.relative_to(whole).as_posix() for p in whole.rglob("*.safetensors"))
            self.assertGreater(len(names), 3)
            self.assertEqual(names, sorted(p.relative_to(killed).as_posix() for p in killed.rglob("*.safetensors")))
            for name in [*names, "log.jsonl"]:
                self.assertEqual((whole / name).read_bytes(), (killed / name).read_bytes(), name)

    def test_the_rate_warms_up_stays_and_cools_down(self):
        from consumers import recipes
        from consumers import train as training
        recipe = recipes.Recipe(rate=1.0, step_tokens=1, sources="", task="", warmup=0.1, cooldown=0.4)
        rates = [training.learning_rate(recipe, f) for f in (0.0, 0.05, 0.1, 0.6, 0.8, 1.0, 1.1)]
        for got, want in zip(rates, (0.1, 0.55, 1.0, 1.0, 0.525, 0.05, 0.05)):
            self.assertAlmostEqual(got, want)

    def test_a_checkpoint_of_another_run_is_refused(self):
        import torch
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            self.assertEqual(self.run_it(out, 5), -signal.SIGKILL)
            saved = torch.load(out / "checkpoint.pt", weights_only=True)
            saved["identity"]["seed"] = 2
            torch.save(saved, out / "checkpoint.pt")
            with self.assertRaisesRegex(ValueError, "another run: seed differ"):
                train(out)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(sys.argv[1], int(sys.argv[2]))
    else:
        unittest.main()
