import unittest

from consumers import disjoint

SENTENCE = "one two three four five six seven eight nine ten eleven twelve"


class Disjoint(unittest.TestCase):
    def test_twelve_common_words_are_found_in_any_writing(self):
        found = disjoint.overlaps([("train", "So: " + SENTENCE.upper().replace(" ", ",  ") + "!")],
                                  [("other", "nothing here"), ("evaluation", "zero " + SENTENCE)])
        self.assertEqual(found, [("train", "evaluation", 1)])

    def test_eleven_common_words_are_not(self):
        shorter = SENTENCE.rsplit(" ", 1)[0]
        self.assertEqual(disjoint.overlaps([("train", shorter + " more words")], [("e", shorter + " other words")]), [])

    def test_every_run_counts(self):
        found = disjoint.overlaps([("t", SENTENCE + " thirteen fourteen")], [("e", SENTENCE + " thirteen fourteen")])
        self.assertEqual(found, [("t", "e", 3)])

    def test_words_of_all_scripts_are_words(self):
        text = " ".join("слово" + str(i) for i in range(12))
        self.assertEqual(disjoint.overlaps([("t", text)], [("e", text)]), [("t", "e", 1)])


if __name__ == "__main__":
    unittest.main()
