#include "common/scd/calibrate/fisher.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/scd/calibrate/differentiable_model.h"
#include "common/scd/calibrate/metric.h"
#include "common/scd/calibrate/statistics.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

// The model's own [K | V] of the prefix, one leaf a layer.
std::vector<at::Tensor> OwnPast(ModelProbe& probe, absl::Span<const std::int32_t> prefix,
                                std::size_t layers) {
  std::vector<at::Tensor> past;
  probe.Start(prefix);
  for (std::size_t l = 0; l < layers; ++l) {
    const std::vector<float>& kv = probe.RunLayer(static_cast<int>(l)).kv;
    past.push_back(at::tensor(at::ArrayRef<float>(kv), at::kFloat)
                       .reshape({static_cast<std::int64_t>(prefix.size()), -1})
                       .set_requires_grad(true));
  }
  return past;
}

}  // namespace

absl::StatusOr<std::vector<Matrix>> FisherMetric(const ProbedModel& model,
                                                 absl::Span<const Document* const> documents,
                                                 const FisherOptions& options, Executor& executor) {
  const ModelConfig& config = model.model->config();
  const auto layers = static_cast<std::size_t>(config.layers);
  const std::int64_t width = 2 * config.kv_heads * config.head_dim;
  BATON_ASSIGN_OR_RETURN(const auto probe, ModelProbe::Create(model, options.prefix, executor));
  const SingleTorchThread single;
  const DifferentiableModel differentiable(model);
  std::vector<Matrix> sums(layers, Matrix(width, width));
  const std::int64_t count =
      std::min(options.documents, static_cast<std::int64_t>(documents.size()));
  std::int64_t rows = 0;
  // As many documents beside each other as there are threads; added in their order.
  for (std::int64_t first = 0; first < count; first += executor.threads()) {
    const std::int64_t group = std::min<std::int64_t>(executor.threads(), count - first);
    std::vector<std::vector<at::Tensor>> past;
    for (std::int64_t i = first; i < first + group; ++i) {
      const Document& document = *documents[static_cast<std::size_t>(i)];
      const DocumentCut cut(document, options.prefix, options.continuation);
      past.push_back(OwnPast(
          *probe, absl::MakeConstSpan(document.tokens).first(static_cast<std::size_t>(cut.prefix)),
          layers));
      rows += cut.prefix - kSinkTokens;
    }
    ForEach(executor, group, [&](std::int64_t i) {
      const Document& document = *documents[static_cast<std::size_t>(first + i)];
      const DocumentCut cut(document, options.prefix, options.continuation);
      at::Generator generator =
          at::detail::createCPUGenerator(options.seed + static_cast<std::uint64_t>(first + i));
      const at::Tensor said = at::log_softmax(
          differentiable.Logits(absl::MakeConstSpan(document.tokens)
                                    .subspan(static_cast<std::size_t>(cut.prefix),
                                             static_cast<std::size_t>(cut.continuation)),
                                past[static_cast<std::size_t>(i)]),
          -1);
      const at::Tensor labels = at::multinomial(said.detach().exp(), 1, false, generator);
      said.gather(1, labels).sum().backward();
    });
    ForEach(executor, config.layers, [&](std::int64_t l) {
      for (const auto& of : past) {
        const at::Tensor g =
            of[static_cast<std::size_t>(l)].grad().slice(0, kSinkTokens).to(at::kDouble);
        View(sums[static_cast<std::size_t>(l)]).addmm_(g.t(), g);
      }
    });
    if (options.progress) options.progress("Fisher metric", first + group, count);
  }
  for (Matrix& sum : sums) {
    at::Tensor w = View(sum);
    w.div_(static_cast<double>(rows));
    w.diagonal().add_(kMetricFloor * w.trace().item<double>() / static_cast<double>(width));
  }
  return sums;
}

}  // namespace baton
