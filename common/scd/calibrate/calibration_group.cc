#include "common/scd/calibrate/calibration_group.h"

#include <cstdint>
#include <set>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {

CalibrationGroup GroupOf(const CalibrationPair& pair) {
  return {.producer = pair.producer,
          .producer_weights = pair.producer_weights,
          .tokenizer = pair.tokenizer,
          .consumers = {{.name = "", .model = pair.consumer, .weights = pair.consumer_weights}}};
}

absl::Status CheckPair(const ModelConfig& p, const ModelConfig& c) {
  struct Field {
    const char* name;
    std::int64_t producer, consumer;
  };
  for (const Field& f :
       {Field{"layers", p.layers, c.layers}, Field{"hidden", p.hidden, c.hidden},
        Field{"kv_heads", p.kv_heads, c.kv_heads}, Field{"head_dim", p.head_dim, c.head_dim}}) {
    if (f.producer != f.consumer) {
      return absl::InvalidArgumentError(
          Cat(f.name, ": ", f.producer, " at the producer, ", f.consumer,
              " at the consumer; a codec is for models of one architecture"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGroup(const CalibrationGroup& group) {
  const std::size_t count = group.consumers.size();
  if (count == 0 || count > kMaxSharedConsumers) {
    return absl::InvalidArgumentError(
        Cat("consumers: ", count, "; allowed: 1 to ", kMaxSharedConsumers));
  }
  const ModelConfig& producer = group.producer.model->config();
  if (count == 1) return CheckPair(producer, group.consumers[0].model.model->config());
  std::set<std::string> names;
  for (const CalibrationConsumer& c : group.consumers) {
    if (c.name.empty() || c.name.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(Cat("consumers: \"", c.name, "\" is no name of a file"));
    }
    if (!names.insert(c.name).second) {
      return absl::InvalidArgumentError(Cat("consumers: two have the name \"", c.name, "\""));
    }
    const absl::Status status = CheckPair(producer, c.model.model->config());
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          Cat("consumer \"", c.name, "\": ", StdView(status.message())));
    }
  }
  return absl::OkStatus();
}

double RawBytesPerToken(const ModelConfig& config) {
  return static_cast<double>(2 * 2 * config.layers * config.kv_heads * config.head_dim);
}

}  // namespace baton
