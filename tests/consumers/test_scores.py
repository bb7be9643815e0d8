import unittest

from consumers import batches, model_card, scoring
from consumers.text import Document


class Scores(unittest.TestCase):
    def test_squad_rules(self):
        self.assertEqual(scoring.exact_match("The Cat, sat!", ("a dog", "cat sat")), 1.0)
        self.assertEqual(scoring.exact_match("cats", ("cat",)), 0.0)
        # "red fox" in "quick red fox": precision 2/3, recall 1.
        self.assertAlmostEqual(scoring.f1("the quick red fox", ("red fox",)), 0.8)
        self.assertEqual(scoring.f1("", ("word",)), 0.0)

    def test_means_by_group_and_over_all(self):
        means = scoring.Means()
        means.add("a", x=1.0, y=(6.0, 3))
        means.add("b", x=0.0, y=(1.0, 1))
        self.assertEqual(means.table(), {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 0.0, "y": 1.0},
                                         "all": {"x": 0.5, "y": 1.75}})


class Packing(unittest.TestCase):
    def stream(self, sizes):
        return batches.Generated(lambda i: Document([0] * sizes[i % len(sizes)], [], [], []))

    def test_a_step_takes_what_fits_in_order(self):
        stream = self.stream([5, 4, 6, 3, 20])
        micro, cursor = batches.next_step(stream, 0, step_tokens=18, micro_tokens=10)
        self.assertEqual([[len(d) for d in m] for m in micro], [[5, 4], [6, 3]])
        self.assertEqual(cursor, 4)
        micro, cursor = batches.next_step(stream, cursor, step_tokens=18, micro_tokens=10)
        self.assertEqual([[len(d) for d in m] for m in micro], [[20]])  # too long, still one document
        self.assertEqual(cursor, 5)

    def test_an_epoch_is_a_permutation_and_any_document_can_be_asked_for(self):
        documents = list(range(10))
        shuffled = batches.Shuffled(documents, seed=4)
        order = [shuffled.document(i) for i in range(30)]
        for epoch in range(3):
            self.assertEqual(sorted(order[10 * epoch:10 * epoch + 10]), documents)
        self.assertNotEqual(order[:10], order[10:20])
        fresh = batches.Shuffled(documents, seed=4)
        self.assertEqual([fresh.document(i) for i in (25, 3, 14)], [order[25], order[3], order[14]])


class ModelCard(unittest.TestCase):
    def test_it_says_what_the_reports_say(self):
        run = {"consumer": "qa", "step": 321, "tokens": 1_234_567, "labels": 45_678, "rows": 2_345_678, "seed": 9,
               "final_loss": 0.8765, "recipe": {"step_tokens": 4096, "rate": 0.0002, "warmup": 0.05}, "cooldown": 0.5}
        scores = {"examples": 60, "tasks": {"qa": {"base": {"all": {"exact_match": 0.111, "f1": 0.222}},
                                                   "consumer": {"all": {"exact_match": 0.333, "f1": 0.444}}}}}
        point = {"step": 10, "tokens": 40_000, "state_error_k": [0.1, 0.3], "state_error_v": [0.4, 0.6],
                 "quality": {"all": {"kl": 0.05, "nll_own": 1.5, "nll_raw": 1.75, "exact_own": 0.5, "exact_raw": 0.25}}}
        text = model_card.card(run, scores, {"sinks": 4, "curve": [point]})
        for said in ("321", "1,234,567", "45,678", "2,345,678", "| qa | exact match | 0.111 | 0.333 |",
                     "| 10 | 40,000 | 0.200 | 0.500 | 0.050 | 1.500 / 1.750 | 0.50 / 0.25 |", "CC BY-SA 3.0", "seed 9"):
            self.assertIn(said, text)


if __name__ == "__main__":
    unittest.main()
