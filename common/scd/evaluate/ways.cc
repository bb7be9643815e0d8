#include "common/scd/evaluate/ways.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/calibrate/statistics.h"
#include "common/scd/code_cut.h"
#include "common/scd/evaluate/kv_quantiser.h"

namespace baton {
namespace {

absl::Status CheckCodecPair(const CalibrationPair& pair, const NamedCodec& named) {
  const CodecIdentity& id = named.codec.identity;
  const ModelConfig& config = pair.consumer.model->config();
  const auto wrong = [&](const char* field, const auto& there, const auto& expected) {
    return absl::InvalidArgumentError(
        Cat(named.path, ": ", field, ": ", there, "; this pair has ", expected));
  };
  if (id.layers != config.layers) return wrong("layers", id.layers, config.layers);
  if (id.hidden != config.hidden) return wrong("hidden", id.hidden, config.hidden);
  if (id.kv_heads != config.kv_heads) return wrong("kv_heads", id.kv_heads, config.kv_heads);
  if (id.head_dim != config.head_dim) return wrong("head_dim", id.head_dim, config.head_dim);
  if (id.tokenizer != pair.tokenizer) return wrong("tokenizer", id.tokenizer, pair.tokenizer);
  if (id.producer_weights != pair.producer_weights) {
    return wrong("producer_weights", id.producer_weights, pair.producer_weights);
  }
  if (id.consumer_weights != pair.consumer_weights) {
    return wrong("consumer_weights", id.consumer_weights, pair.consumer_weights);
  }
  return absl::OkStatus();
}

// The producer's own K/V after `change`, which works in place.
PrefixWay ChangedWay(std::string name, const ProbedModel& consumer, Executor& executor,
                     std::function<void(std::int64_t rows, float* kv)> change) {
  PrefixWay uncoded = UncodedWay(std::move(name), consumer, executor);
  return {uncoded.name, [decode = std::move(uncoded.decode), change = std::move(change)](
                            const ProducerRows& given, float* out) {
            decode(given, out);
            change(given.rows, out);
          }};
}

std::string CutName(const std::string& codec, double cut) {
  return Cat(codec, "@", static_cast<int>(std::lround(100 * cut)), "%");
}

double PartOf(LayerRun run, std::int64_t layers) {
  return static_cast<double>(run.size()) / static_cast<double>(layers);
}

// Whole and cut ways of one codec.
absl::Status AddCodedWays(const CalibrationPair& pair, const NamedCodec& named,
                          const std::vector<double>& cuts, std::int32_t max_tokens,
                          Executor& executor, std::vector<EvaluatedWay>& ways) {
  const std::string family = "reuse:" + named.name;
  const double compute = PartOf(named.codec.run(), named.codec.identity.layers);
  const auto add = [&](const std::string& name, const std::optional<CodeCut>& cut, double bytes,
                       bool is_default) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(PrefixWay way,
                           CodedWay(name, named.codec, pair.consumer, max_tokens, executor, cut));
    ways.push_back(
        {std::move(way), family, [bytes](std::int64_t) { return bytes; }, is_default, compute});
    return absl::OkStatus();
  };
  const double whole = named.codec.bytes_per_token();
  BATON_RETURN_IF_ERROR(add(family, std::nullopt, whole, true));
  const CodeShape shape = CodeShape::Of(named.codec);
  for (const double part : cuts) {
    const auto cut = CutCode(shape, static_cast<std::uint32_t>(std::floor(part * whole)));
    // Below what the first components take there is nothing to send.
    if (!cut.ok()) continue;
    const double bytes = cut->bytes_per_token();
    if (bytes >= whole) continue;
    BATON_RETURN_IF_ERROR(add(CutName(family, part), *cut, bytes, false));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCodecs(const CalibrationPair& pair, const std::vector<NamedCodec>& codecs) {
  for (const NamedCodec& named : codecs) BATON_RETURN_IF_ERROR(CheckCodecPair(pair, named));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EvaluatedWay>> MakeWays(const CalibrationPair& pair,
                                                   const std::vector<NamedCodec>& codecs,
                                                   const std::vector<double>& cuts,
                                                   const std::vector<LayerRun>& recomputed,
                                                   std::int32_t max_tokens, Executor& executor) {
  BATON_RETURN_IF_ERROR(CheckCodecs(pair, codecs));
  const ModelConfig& c = pair.consumer.model->config();
  const KvShape shape{static_cast<int>(c.kv_heads), static_cast<int>(c.head_dim)};
  const auto layers = static_cast<double>(c.layers);
  const double raw = RawBytesPerToken(c);
  std::vector<EvaluatedWay> ways;
  ways.push_back(
      {ChangedWay("raw", pair.consumer, executor,
                  [shape](std::int64_t rows, float* kv) { RoundToHalf(kv, rows * shape.width()); }),
       "raw", [raw](std::int64_t) { return raw; }, true});
  ways.push_back({ChangedWay("q4", pair.consumer, executor,
                             [shape](std::int64_t rows, float* kv) {
                               PassThroughQ4(shape, kSinkTokens, rows, kv);
                             }),
                  "q4",
                  [shape, layers](std::int64_t rows) {
                    return layers * Q4KvBytes(shape, rows) / static_cast<double>(rows);
                  },
                  true});
  for (const int bits : {4, 3, 2}) {
    ways.push_back({ChangedWay(Cat("raw-", bits, "bit"), pair.consumer, executor,
                               [shape, bits](std::int64_t rows, float* kv) {
                                 QuantiseKv(bits, shape, kSinkTokens, rows, kv);
                               }),
                    "raw, few bits",
                    [shape, bits, layers](std::int64_t rows) {
                      return layers * QuantisedKvBytes(bits, shape, rows) /
                             static_cast<double>(rows);
                    },
                    false});
  }
  for (const LayerRun run : recomputed) {
    BATON_ASSIGN_OR_RETURN(PrefixWay way, SelectiveWay(pair.consumer, run, max_tokens, executor));
    const double bytes = SelectiveBytes(c, run);
    ways.push_back({std::move(way), "selective", [bytes](std::int64_t) { return bytes; }, false,
                    PartOf(run, c.layers)});
  }
  for (const NamedCodec& named : codecs) {
    BATON_RETURN_IF_ERROR(AddCodedWays(pair, named, cuts, max_tokens, executor, ways));
  }
  return ways;
}

}  // namespace baton
