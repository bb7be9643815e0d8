// What a calibration measured and how, as the JSON that a codec carries (docs/artifact_format.md).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/scd/calibrate/calibration_group.h"
#include "common/scd/calibrate/calibration_options.h"
#include "common/scd/calibrate/candidate.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/held_out.h"
#include "common/scd/calibrate/patch.h"
#include "common/scd/calibrate/shared_choice.h"
#include "common/scd/codec.h"

namespace baton {

// Of one consumer's codec.
struct ReportInput {
  const CalibrationOptions& options;
  const DocumentSet& set;
  const DocumentSplit& split;
  const CalibrationGroup& group;
  std::size_t consumer = 0;          // of the group: whose codec it is
  const std::vector<Codec>& codecs;  // of the candidates
  const std::vector<Candidate>& candidates;
  const HeldOutScores& scores;  // uncoded raw, the candidates in their order, these with seams
  const std::vector<ConsumerKl>& kl;  // of all consumers, held out
  const SharedChoice& choice;
  std::string patch_base;                 // candidate whose layers were patched
  const PatchSelection* patch = nullptr;  // null: none were tried

  std::size_t chosen() const { return choice.chosen[consumer]; }  // index of a candidate
};

std::string CalibrationReport(const ReportInput& input);

}  // namespace baton
