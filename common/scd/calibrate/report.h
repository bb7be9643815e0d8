// What a calibration measured and how, as the JSON that a codec carries (docs/artifact_format.md).
#pragma once

#include <string>
#include <vector>

#include "common/scd/calibrate/calibration.h"
#include "common/scd/calibrate/candidate.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/held_out.h"

namespace baton {

struct ReportInput {
  const CalibrationOptions& options;
  const DocumentSet& set;
  const DocumentSplit& split;
  const ModelConfig& model;
  const std::vector<Codec>& codecs;  // of the candidates
  const std::vector<Candidate>& candidates;
  const HeldOutScores& scores;  // uncoded raw, the candidates in their order, these with seams
  std::string patch_base;       // candidate whose layers were patched
  const PatchSelection* patch = nullptr;  // null: none were tried
  std::size_t chosen = 0;                 // index of a candidate
};

std::string CalibrationReport(const ReportInput& input);

}  // namespace baton
