"""Files for `baton eval scd` and `baton calibrate`: questions and conversations, one JSON object a line."""
import json
import tempfile
import unittest

import small_data
from consumers import questions, tasks, traffic


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


class Traffic(unittest.TestCase):
    def rows(self, folder, *options):
        traffic.main(["--examples", "6", "--data", f"{folder}/data", "--out", f"{folder}/t.jsonl", *options])
        with open(f"{folder}/t.jsonl", encoding="utf-8") as f:
            return [[m["content"] for m in json.loads(line)["messages"]] for line in f]

    def test_each_side_has_its_own_contexts(self):
        with tempfile.TemporaryDirectory() as folder:
            small_data.write(f"{folder}/data")
            for consumer, examples in (("skills", tasks.skill_examples), ("qa", tasks.qa_examples)):
                learned = self.rows(folder, "--consumer", consumer)
                held_out = self.rows(folder, "--consumer", consumer, "--held-out")
                self.assertTrue(learned and held_out)
                self.assertFalse({user for user, _ in learned} & {user for user, _ in held_out})
                contexts = [e.context.strip() for e in examples(f"{folder}/data", 1000)]
                self.assertTrue(all(any(user.startswith(c) for c in contexts) for user, _ in held_out))


if __name__ == "__main__":
    unittest.main()
