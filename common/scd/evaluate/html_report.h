// An evaluation as one HTML page with its plots: no scripts, nothing loaded from elsewhere.
#pragma once

#include <string>
#include <vector>

#include "common/scd/evaluate/evaluation.h"
#include "common/scd/evaluate/svg_plot.h"

namespace baton {

// Rate against KL by family, and state errors by layer of the ways at their defaults.
std::vector<Plot> EvaluationPlots(const Evaluation& evaluation);

std::string EvaluationHtml(const Evaluation& evaluation);

}  // namespace baton
