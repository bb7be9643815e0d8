#include "common/scd/calibrate/kl_training.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/calibrate/differentiable_model.h"
#include "common/scd/calibrate/statistics.h"
#include "common/scd/calibrate/tensors.h"
#include "common/scd/calibrate/training_checkpoint.h"
#include "common/scd/decoder.h"
#include "common/scd/encoder.h"
#include "common/weights/digest.h"

namespace baton {
namespace {

constexpr double kClipNorm = 1;
constexpr double kPi = 3.14159265358979323846;
// Documents whose K/V are held at once while the consumer's predictions are made.
constexpr std::size_t kLessonsAtOnce = 8;

// A document as every epoch needs it.
struct Lesson {
  std::vector<std::int32_t> continuation;     // tokens that are run
  std::int64_t before_answer = 0;             // as DocumentCut has it
  std::int64_t rows = 0;                      // of the prefix
  std::vector<std::vector<std::byte>> codes;  // [layer]: whole blocks, the last one filled up
  std::vector<at::Tensor> sinks;  // [layer]: [kSinkTokens, 2 * kv_dim], the consumer's own
  at::Tensor log_probs;           // [n, vocab] fp16, the consumer's own
};

at::Tensor ToTensor(const std::vector<float>& values, std::int64_t rows) {
  const auto n = static_cast<std::int64_t>(values.size());
  return at::tensor(at::ArrayRef<float>(values), at::kFloat).reshape({rows, n / rows});
}

class Trainer {
 public:
  Trainer(const ProbedModel& consumer, Codec codec, const KlTrainingOptions& options,
          Executor& executor)
      : options_(options),
        executor_(executor),
        model_(consumer),
        encoder_(codec, executor),
        decoder_(codec,
                 {std::vector<float>(static_cast<std::size_t>(codec.identity.head_dim / 2)), 1},
                 executor),
        codec_(std::move(codec)) {
    at::Generator generator = at::detail::createCPUGenerator(options.seed);
    for (const CodecLayer& layer : codec_.layers) {
      const std::int64_t out = codec_.identity.decoded_width(layer.kind);
      const std::int64_t rank = std::min(options.rank, std::min(out, layer.rank()));
      start_.push_back(ToTensor(layer.decoder, out));
      offset_.push_back(at::tensor(at::ArrayRef<float>(layer.offset), at::kFloat));
      up_.push_back(at::zeros({out, rank}));
      down_.push_back(at::randn({rank, layer.rank()}, generator) /
                      std::sqrt(static_cast<double>(layer.rank())));
      mlp_in_.emplace_back();
      mlp_out_.emplace_back();
      if (layer.kind != LayerKind::kPatch) continue;
      const std::int64_t inner = 2 * layer.rank();
      const bool fresh = layer.mlp_in.empty();
      mlp_in_.back() = fresh ? at::randn({inner, layer.rank()}, generator) /
                                   std::sqrt(static_cast<double>(layer.rank()))
                             : ToTensor(layer.mlp_in, inner);
      mlp_out_.back() = fresh ? at::zeros({out, inner}) : ToTensor(layer.mlp_out, out);
    }
    for (auto* group : {&up_, &down_, &offset_, &mlp_in_, &mlp_out_}) {
      for (at::Tensor& t : *group) {
        if (t.defined()) parameters_.push_back(t.set_requires_grad(true));
      }
    }
    optimizer_ = std::make_unique<torch::optim::AdamW>(
        parameters_, torch::optim::AdamWOptions(options_.learning_rate).weight_decay(0));
  }

  // All but the consumer's own predictions. `own`: its [K | V] of the prefix, one a layer.
  Lesson Prepare(const Document& document, ModelProbe& producer, ModelProbe& consumer,
                 std::vector<at::Tensor>& own) const {
    const DocumentCut cut(document, options_.prefix, options_.continuation);
    const absl::Span<const std::int32_t> tokens(document.tokens);
    const auto before = tokens.subspan(0, static_cast<std::size_t>(cut.prefix));
    const auto after = tokens.subspan(static_cast<std::size_t>(cut.prefix),
                                      static_cast<std::size_t>(cut.continuation));
    Lesson lesson;
    lesson.continuation.assign(after.begin(), after.end());
    lesson.before_answer = cut.before_answer;
    lesson.rows = cut.prefix;
    producer.Start(before);
    consumer.Start(before);
    for (int layer = 0; layer < static_cast<int>(codec_.layers.size()); ++layer) {
      const LayerStates& states = producer.RunLayer(layer);
      lesson.codes.push_back(
          Encode(layer, encoder_.source() == CodeSource::kHidden ? states.hidden : states.kv));
      own.push_back(ToTensor(consumer.RunLayer(layer).kv, cut.prefix));
      lesson.sinks.push_back(own.back().slice(0, 0, kSinkTokens).clone());
    }
    return lesson;
  }

  void Predict(const std::vector<at::Tensor>& own, Lesson& lesson) const {
    const at::NoGradGuard no_grad;  // of the thread
    lesson.log_probs = at::log_softmax(model_.Logits(lesson.continuation, own), -1).to(at::kHalf);
  }

  // KL in nats of each token of the continuation [n]; a graph behind it unless gradients are off.
  at::Tensor Kl(const Lesson& lesson) const {
    std::vector<at::Tensor> past;
    for (std::size_t l = 0; l < codec_.layers.size(); ++l) {
      const at::Tensor map = start_[l] + at::mm(up_[l], down_[l]);
      const at::Tensor z = Components(l, lesson);
      at::Tensor kv = at::mm(z, map.t()) + offset_[l];
      if (mlp_in_[l].defined()) {
        const at::Tensor inner = at::silu(at::mm(z, mlp_in_[l].t()));
        kv = model_.KvOf(l, kv + at::mm(inner, mlp_out_[l].t()));
      }
      past.push_back(at::cat({lesson.sinks[l], kv.slice(0, kSinkTokens, lesson.rows)}, 0));
    }
    const at::Tensor said = at::log_softmax(model_.Logits(lesson.continuation, past), -1);
    const at::Tensor own = lesson.log_probs.to(at::kFloat);
    return (own.exp() * (own - said)).sum(-1);
  }

  // What is learned from: tokens before an answer say as much about K/V.
  at::Tensor Loss(const Lesson& lesson) const { return Kl(lesson).mean(); }

  double Judge(const std::vector<Lesson>& lessons) const {
    std::vector<double> losses(lessons.size());
    ForEach(executor_, static_cast<std::int64_t>(lessons.size()), [&](std::int64_t i) {
      const at::NoGradGuard no_grad;  // of the thread
      const Lesson& lesson = lessons[static_cast<std::size_t>(i)];
      losses[static_cast<std::size_t>(i)] =
          Kl(lesson).slice(0, lesson.before_answer).mean().item<double>();
    });
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  }

  // Mean KL while it ran. `order`: of the lessons.
  double RunEpoch(int epoch, const std::vector<Lesson>& lessons,
                  const std::vector<std::size_t>& order) {
    const auto batch = static_cast<std::size_t>(options_.batch);
    const auto updates = static_cast<std::int64_t>((order.size() + batch - 1) / batch);
    double sum = 0;
    for (std::size_t first = 0; first < order.size(); first += batch) {
      const std::size_t count = std::min(batch, order.size() - first);
      // Documents of a batch beside each other; their gradients are added in order, so that the
      // number of threads changes nothing.
      std::vector<double> losses(count);
      std::vector<std::vector<at::Tensor>> gradients(count);
      ForEach(executor_, static_cast<std::int64_t>(count), [&](std::int64_t i) {
        const auto at = static_cast<std::size_t>(i);
        const at::Tensor loss = Loss(lessons[order[first + at]]);
        losses[at] = loss.item<double>();
        gradients[at] = torch::autograd::grad({loss / static_cast<double>(count)}, parameters_);
      });
      for (std::size_t p = 0; p < parameters_.size(); ++p) {
        parameters_[p].mutable_grad() = gradients[0][p];
        for (std::size_t i = 1; i < count; ++i) parameters_[p].mutable_grad() += gradients[i][p];
      }
      for (const double loss : losses) sum += loss;
      Update(epoch * updates + static_cast<std::int64_t>(first / batch), options_.epochs * updates);
      if (options_.progress) {
        options_.progress(Cat("training, epoch ", epoch + 1, " of ", options_.epochs),
                          static_cast<std::int64_t>(first + count),
                          static_cast<std::int64_t>(order.size()));
      }
    }
    return sum / static_cast<double>(order.size());
  }

  // What is learned by now.
  std::vector<at::Tensor> Copy() const {
    std::vector<at::Tensor> copy;
    for (const at::Tensor& t : parameters_) copy.push_back(t.detach().clone());
    return copy;
  }
  void Take(const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < values.size(); ++i) parameters_[i].copy_(values[i]);
  }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  // The codec with what is learned by now.
  Codec Learned() const {
    Codec codec = codec_;
    const at::NoGradGuard no_grad;
    for (std::size_t l = 0; l < codec.layers.size(); ++l) {
      CodecLayer& layer = codec.layers[l];
      Assign(start_[l] + at::mm(up_[l], down_[l]), layer.decoder);
      Assign(offset_[l], layer.offset);
      if (!mlp_in_[l].defined()) continue;
      Assign(mlp_in_[l], layer.mlp_in);
      Assign(mlp_out_[l], layer.mlp_out);
    }
    return codec;
  }

 private:
  static void Assign(const at::Tensor& from, std::vector<float>& to) {
    const at::Tensor values = from.contiguous();
    to.assign(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
  }

  std::vector<std::byte> Encode(int layer, const std::vector<float>& states) const {
    const std::size_t block = encoder_.whole().layers[static_cast<std::size_t>(layer)].block_bytes;
    const auto width = static_cast<std::size_t>(encoder_.width());
    const std::size_t blocks = (states.size() / width + kCodeBlockRows - 1) / kCodeBlockRows;
    std::vector<float> rows = states;
    rows.resize(blocks * kCodeBlockRows * width);
    std::vector<std::byte> codes(blocks * block);
    for (std::size_t b = 0; b < blocks; ++b) {
      encoder_.Encode(layer, rows.data() + b * kCodeBlockRows * width, encoder_.width(), 0,
                      codes.data() + b * block, executor_);
    }
    return codes;
  }

  // z' of the prefix: [rows, rank].
  at::Tensor Components(std::size_t layer, const Lesson& lesson) const {
    const std::size_t block = encoder_.whole().layers[layer].block_bytes;
    const auto rank = codec_.layers[layer].rank();
    const std::vector<std::byte>& codes = lesson.codes[layer];
    const auto blocks = static_cast<std::int64_t>(codes.size() / block);
    at::Tensor z = at::empty({blocks * kCodeBlockRows, rank}, at::kFloat);
    for (std::int64_t b = 0; b < blocks; ++b) {
      decoder_.Components(static_cast<int>(layer),
                          codes.data() + static_cast<std::size_t>(b) * block,
                          static_cast<int>(rank), z.data_ptr<float>() + b * kCodeBlockRows * rank);
    }
    return z.slice(0, 0, lesson.rows);
  }

  void Update(std::int64_t update, std::int64_t updates) {
    const double at = static_cast<double>(update + 1) / static_cast<double>(updates);
    const double rate =
        at < options_.warmup
            ? at / options_.warmup
            : 0.5 * (1 + std::cos(kPi * (at - options_.warmup) / (1 - options_.warmup)));
    for (auto& group : optimizer_->param_groups())
      group.options().set_lr(options_.learning_rate * rate);
    torch::nn::utils::clip_grad_norm_(parameters_, kClipNorm);
    optimizer_->step();
  }

  const KlTrainingOptions& options_;
  Executor& executor_;
  const DifferentiableModel model_;
  const CodeEncoder encoder_;
  const CodeDecoder decoder_;  // for components only: keys stay unrotated here
  const Codec codec_;
  std::vector<at::Tensor> start_;               // B of each layer
  std::vector<at::Tensor> up_, down_, offset_;  // learned: U, V, offset
  std::vector<at::Tensor> mlp_in_, mlp_out_;    // learned; undefined but of patched layers
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

// Everything that decides what a training ends in, but for the models, which the codec names.
std::string TrainingKey(const Codec& start, absl::Span<const Document* const> documents,
                        const KlTrainingOptions& o) {
  const std::string text =
      Cat(start.Digest(), " rank ", o.rank, " epochs ", o.epochs, " batch ", o.batch, " rate ",
          o.learning_rate, " warmup ", o.warmup, " prefix ", o.prefix, " continuation ",
          o.continuation, " judges ", o.judges, " seed ", o.seed, " ", TokensDigest(documents));
  return Xxh3Hex(text.data(), text.size());
}

std::vector<std::size_t> Shuffled(std::size_t count, std::mt19937_64& random) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

// In the order of the documents.
absl::StatusOr<std::vector<Lesson>> PrepareLessons(const ProbedModel& producer,
                                                   const ProbedModel& consumer,
                                                   absl::Span<const Document* const> documents,
                                                   const KlTrainingOptions& options,
                                                   const Trainer& trainer, Executor& executor) {
  BATON_ASSIGN_OR_RETURN(const auto from, ModelProbe::Create(producer, options.prefix, executor));
  BATON_ASSIGN_OR_RETURN(const auto to, ModelProbe::Create(consumer, options.prefix, executor));
  std::vector<Lesson> lessons;
  // Predictions of several documents beside each other, each on one thread.
  for (std::size_t first = 0; first < documents.size(); first += kLessonsAtOnce) {
    const auto group = documents.subspan(first, kLessonsAtOnce);
    std::vector<std::vector<at::Tensor>> own(group.size());
    for (std::size_t i = 0; i < group.size(); ++i) {
      lessons.push_back(trainer.Prepare(*group[i], *from, *to, own[i]));
    }
    ForEach(executor, static_cast<std::int64_t>(group.size()), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      trainer.Predict(own[at], lessons[first + at]);
    });
    if (options.progress) {
      options.progress("preparing lessons", static_cast<std::int64_t>(lessons.size()),
                       static_cast<std::int64_t>(documents.size()));
    }
  }
  return lessons;
}

// All epochs that are not done yet; `state.best` is what they end in.
absl::Status RunEpochs(const std::string& key, const std::vector<Lesson>& learned,
                       const std::vector<Lesson>& judges, const KlTrainingOptions& options,
                       Trainer& trainer, TrainingState& state) {
  state.parameters = trainer.Copy();
  if (!options.checkpoint.empty() &&
      LoadTraining(options.checkpoint, key, state, trainer.optimizer())) {
    trainer.Take(state.parameters);
  } else {
    state.judged_kl = {trainer.Judge(judges)};
  }
  std::mt19937_64 random(options.seed);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const std::vector<std::size_t> order = Shuffled(learned.size(), random);
    if (epoch < state.epochs) continue;
    const double best = *std::min_element(state.judged_kl.begin(), state.judged_kl.end());
    state.learned_kl.push_back(trainer.RunEpoch(epoch, learned, order));
    state.judged_kl.push_back(trainer.Judge(judges));
    state.epochs = epoch + 1;
    state.parameters = trainer.Copy();
    if (state.judged_kl.back() < best) state.best = state.parameters;
    if (options.checkpoint.empty()) continue;
    BATON_RETURN_IF_ERROR(SaveTraining(options.checkpoint, key, state, trainer.optimizer()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KlTrainingResult> TrainDecoder(const ProbedModel& producer,
                                              const ProbedModel& consumer, const Codec& start,
                                              absl::Span<const Document* const> documents,
                                              const KlTrainingOptions& options,
                                              Executor& executor) {
  if (static_cast<std::int64_t>(documents.size()) <= options.judges) {
    return absl::InvalidArgumentError(Cat("documents: ", documents.size(), ", of which ",
                                          options.judges,
                                          " choose the epoch; none is left to learn"));
  }
  const SingleTorchThread single;
  Trainer trainer(consumer, start, options, executor);
  BATON_ASSIGN_OR_RETURN(std::vector<Lesson> learned,
                         PrepareLessons(producer, consumer, documents, options, trainer, executor));
  const auto judging = learned.begin() + static_cast<std::ptrdiff_t>(options.judges);
  const std::vector<Lesson> judges(std::make_move_iterator(learned.begin()),
                                   std::make_move_iterator(judging));
  learned.erase(learned.begin(), judging);
  TrainingState state;
  BATON_RETURN_IF_ERROR(
      RunEpochs(TrainingKey(start, documents, options), learned, judges, options, trainer, state));
  KlTrainingResult result{start, std::move(state.judged_kl), std::move(state.learned_kl)};
  if (!state.best.empty()) {
    trainer.Take(state.best);
    result.codec = trainer.Learned();
  }
  return result;
}

}  // namespace baton
