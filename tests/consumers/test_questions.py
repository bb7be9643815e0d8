"""Question files of `baton eval scd`: what `consumers.evaluate` asks, one JSON object a line."""
import json
import tempfile
import unittest

import small_data
from consumers import questions, tasks


class Questions(unittest.TestCase):
    def test_rows_are_the_held_out_examples(self):
        with tempfile.TemporaryDirectory() as folder:
            small_data.write(f"{folder}/data")
            for consumer, examples in (("skills", tasks.skill_examples), ("qa", tasks.qa_examples)):
                questions.main(["--consumer", consumer, "--examples", "5", "--data", f"{folder}/data",
                                "--out", f"{folder}/q.jsonl"])
                with open(f"{folder}/q.jsonl", encoding="utf-8") as f:
                    rows = [json.loads(line) for line in f]
                wanted = [(e.context.strip(), q.text.strip(), q.answer, list(q.references), q.skill)
                          for e in examples(f"{folder}/data", 5) for q in e.questions]
                self.assertEqual([(r["context"], r["question"], r["answer"], r["references"], r["skill"])
                                  for r in rows], wanted)
                self.assertTrue(all(r["exact"] == (r["skill"] == "json") for r in rows))


if __name__ == "__main__":
    unittest.main()
