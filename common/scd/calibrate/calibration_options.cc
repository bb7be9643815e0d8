#include "common/scd/calibrate/calibration_options.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/calibrate/bit_allocation.h"

namespace baton {
namespace {

absl::Status Refused(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status CheckSizes(const CalibrationOptions& o, const CalibrationGroup& group) {
  const ModelConfig& p = group.producer.model->config();
  if (std::find(kBitChoices.begin(), kBitChoices.end(), o.component_bits) == kBitChoices.end()) {
    return Refused(
        Cat("component_bits: ", int{o.component_bits}, "; allowed: 0, 1, 2, 3, 4, 6, 8"));
  }
  // A component for every layer; and nobody sends more than raw.
  const int bits = std::max<int>(1, o.component_bits);
  const double least = static_cast<double>(p.layers * bits) / 8, most = RawBytesPerToken(p);
  if (!(o.bytes_per_token >= least && o.bytes_per_token <= most)) {
    return Refused(Cat("bytes_per_token: ", o.bytes_per_token, "; allowed: ", least, " to ", most));
  }
  if (o.prefix < 2 * kSinkTokens || o.continuation < 2) {
    return Refused(Cat("prefix: ", o.prefix, ", continuation: ", o.continuation));
  }
  std::int64_t context = p.max_context;
  for (const CalibrationConsumer& c : group.consumers) {
    context = std::min<std::int64_t>(context, c.model.model->config().max_context);
  }
  if (o.prefix + o.continuation > context) {
    return Refused(Cat("prefix: ", o.prefix, " and ", o.continuation,
                       " tokens after it; the models' context is ", context));
  }
  for (const std::int32_t seam : o.seams) {
    if (seam < 1 || seam >= o.prefix) {
      return Refused(Cat("seams: ", seam, "; allowed: 1 to prefix"));
    }
  }
  if (o.held_out < 1) return Refused(Cat("held_out: ", o.held_out, "; at least 1"));
  if (o.sample_rows < 256) return Refused(Cat("sample_rows: ", o.sample_rows, "; at least 256"));
  return absl::OkStatus();
}

absl::Status CheckFits(const CalibrationOptions& o) {
  if (o.ridges.empty() || o.ridges.size() > kMaxRidges) {
    return Refused(Cat("ridges: ", o.ridges.size(), " of them; allowed: 1 to ", kMaxRidges));
  }
  for (const double ridge : o.ridges) {
    if (!(ridge > 0) || !std::isfinite(ridge)) return Refused(Cat("ridges: ", ridge));
  }
  if (o.epochs < 0 || o.train_documents < 2 || o.train_rank < 1 || !(o.learning_rate > 0)) {
    return Refused(Cat("training: ", o.epochs, " epochs of ", o.train_documents,
                       " documents, rank ", o.train_rank, ", learning rate ", o.learning_rate));
  }
  if (o.patches() && o.source != CodeSource::kHidden) {
    return Refused("patch: patched layers are coded from source h");
  }
  if (o.patch_documents < 1 || o.patch_epochs < 0) {
    return Refused(Cat("patch: ", o.patch_documents, " documents, ", o.patch_epochs, " epochs"));
  }
  return absl::OkStatus();
}

absl::Status CheckRuns(const CalibrationOptions& o, std::int64_t layers) {
  if (o.runs.size() > kMaxRuns) {
    return Refused(Cat("runs: ", o.runs.size(), " of them; allowed: up to ", kMaxRuns));
  }
  for (std::size_t i = 0; i < o.runs.size(); ++i) {
    const LayerRun run = o.runs[i];
    if (run.empty() || run.begin < 0 || run.end > layers) {
      return Refused(Cat("runs: ", LayerRunText(run), "; the models have ", layers, " layers"));
    }
    if (std::find(o.runs.begin(), o.runs.begin() + static_cast<std::ptrdiff_t>(i), run) !=
        o.runs.begin() + static_cast<std::ptrdiff_t>(i)) {
      return Refused(Cat("runs: ", LayerRunText(run), " twice"));
    }
  }
  if (!o.runs.empty() && o.source != CodeSource::kHidden) {
    return Refused("runs: the stream is coded from source h");
  }
  return absl::OkStatus();
}

// What has a code of its own for every consumer.
absl::Status CheckShared(const CalibrationOptions& o, std::size_t consumers) {
  if (o.patches()) {
    return Refused(Cat("patch: patched layers have codes of their own, for one consumer; here are ",
                       consumers));
  }
  if (!o.runs.empty()) {
    return Refused(
        Cat("runs: the stream has a code of its own, for one consumer; here are ", consumers));
  }
  if (std::count(o.factorisations.begin(), o.factorisations.end(), Factorisation::kStacked) > 0) {
    return Refused(Cat("factorisations: ", FactorisationName(Factorisation::kStacked),
                       " is for one consumer; here are ", consumers));
  }
  if (o.separate) {
    return Refused(Cat("separate: for one consumer; here are ", consumers));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const CalibrationOptions& options, const CalibrationGroup& group) {
  BATON_RETURN_IF_ERROR(CheckSizes(options, group));
  BATON_RETURN_IF_ERROR(CheckFits(options));
  BATON_RETURN_IF_ERROR(CheckRuns(options, group.producer.model->config().layers));
  return group.shared() ? CheckShared(options, group.consumers.size()) : absl::OkStatus();
}

CalibrationOptions OptionsOf(const CalibrationConsumer& consumer, const CalibrationGroup& group,
                             const CalibrationOptions& options) {
  CalibrationOptions own = options;
  if (!group.shared()) return own;
  if (!own.checkpoints.empty()) own.checkpoints += consumer.name + ".";
  if (own.progress) {
    own.progress = [report = options.progress, name = consumer.name](
                       std::string_view stage, std::int64_t done, std::int64_t total) {
      report(Cat(stage, " (", name, ")"), done, total);
    };
  }
  return own;
}

}  // namespace baton
