"""What holds on the project's data folder: no overlap with evaluation text, tokens split where the text does."""
import importlib.util
import pathlib
import unittest

from consumers import data_code, data_qa, disjoint, options, skills, text

DATA = pathlib.Path(options.data_default())


@unittest.skipUnless(DATA.is_dir(), f"no data folder at {DATA}")
class RealData(unittest.TestCase):
    def test_training_shares_nothing_with_evaluation(self):
        self.assertEqual(disjoint.check(DATA), [])

    def test_no_held_out_module_is_trained_on(self):
        texts = data_code.files()
        held = {name for name in texts if data_code.is_held_out(name)}
        self.assertGreater(len(held), 10)
        trained = {t for name, t in texts.items() if name not in held}
        self.assertFalse(trained & {texts[name] for name in held if texts[name].strip()})

    @unittest.skipUnless(importlib.util.find_spec("tokenizers"), "no tokenizers")
    def test_a_document_has_the_tokens_of_the_whole_conversation(self):
        tokenizer = text.Tokenizer(DATA / "tokenizers" / "smollm2_tokenizer.json")
        generator = skills.Generator(DATA)
        for example in [*data_qa.examples(DATA)[::600], *(generator.example(i) for i in range(20))]:
            document = text.chat_document(tokenizer, example)
            for branch, question in enumerate(example.questions, start=1):
                rows = [i for i, s in enumerate(document.segments) if s in (0, branch)]
                ids = [document.ids[i] for i in rows]
                user = tokenizer.encode(f"user\n{example.context.strip()}\n\n{question.text}")
                start = document.ids.index(text.IM_START, 1) + 1
                self.assertEqual(ids[start:start + len(user)], user)
                answer = [document.labels[i] for i in rows if document.labels[i] != text.NO_LABEL]
                self.assertEqual(tokenizer.decode(answer[:-1]), question.answer)
                self.assertEqual(answer[-1], text.IM_END)
                self.assertEqual([document.positions[i] for i in rows], list(range(len(rows))))


if __name__ == "__main__":
    unittest.main()
