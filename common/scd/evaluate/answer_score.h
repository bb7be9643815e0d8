// Scores of short answers, as SQuAD defines them: equal to scripts/consumers/scoring.py, with which
// consumers are trained and judged.
//
// Source: P. Rajpurkar et al., SQuAD, arXiv 1606.05250, section 6.1, and the v1.1 evaluation
// script.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace baton {

// Lower case, without ASCII punctuation, articles and extra space. UTF-8; what is not stays as it
// is.
std::string NormaliseAnswer(std::string_view text);

// Whether the normalised texts are equal, for the best of the references.
bool ExactMatch(std::string_view answer, const std::vector<std::string>& references);

// Best over the references of the harmonic mean of word precision and recall. 0 without any.
double AnswerF1(std::string_view answer, const std::vector<std::string>& references);

// Without white space at both ends, as Python's strip().
std::string_view StripSpace(std::string_view text);

}  // namespace baton
