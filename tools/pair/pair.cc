#include "tools/pair/pair.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/model_tokenizer.h"
#include "common/weights/lora.h"

namespace baton::tools {
namespace {

absl::StatusOr<std::shared_ptr<const Model>> LoadWeights(const ModelSource& source,
                                                         const std::string& stage,
                                                         const CalibrationProgress& progress,
                                                         WeightStore& store, Executor& executor) {
  return Model::Load(source, {.weight_dtype = WeightDType::kF32,
                              .executor = &executor,
                              .progress =
                                  [&](std::int64_t done, std::int64_t total) {
                                    if (progress) progress(stage, done >> 20, total >> 20);
                                  },
                              .store = &store});
}

struct OpenedConsumer {
  std::size_t base = 0;  // index into LoadedGroup::bases
  std::optional<LoraAdapter> adapter;
};

// The index of the base of this path, which is opened when it is new.
absl::StatusOr<std::size_t> OpenBase(const std::string& path, LoadedGroup& loaded) {
  for (std::size_t i = 0; i < loaded.bases.size(); ++i) {
    if (loaded.bases[i].path == path) return i;
  }
  LoadedGroup::Base base;
  base.path = path;
  BATON_ASSIGN_OR_RETURN(base.source, ModelSource::Open(path));
  BATON_ASSIGN_OR_RETURN(const auto tokenizer, ReadModelTokenizer(*base.source));
  if (loaded.tokenizer->digest() != tokenizer->digest()) {
    return absl::InvalidArgumentError(
        Cat("tokenizer: the consumer's (", path, ") gives other ids (", tokenizer->digest(),
            ") than the producer's (", loaded.tokenizer->digest(), ")"));
  }
  loaded.bases.push_back(std::move(base));
  return loaded.bases.size() - 1;
}

// What is wrong with a consumer's files is said before any weights are loaded.
absl::StatusOr<OpenedConsumer> OpenConsumer(const ConsumerFiles& files, LoadedGroup& loaded) {
  OpenedConsumer opened;
  BATON_ASSIGN_OR_RETURN(opened.base, OpenBase(files.model, loaded));
  if (files.adapter.empty()) return opened;
  BATON_ASSIGN_OR_RETURN(
      opened.adapter,
      LoadLoraAdapter(files.adapter, files.adapter, loaded.bases[opened.base].source->config()));
  return opened;
}

absl::StatusOr<CalibrationConsumer> AddConsumer(const std::string& name,
                                                const OpenedConsumer& opened,
                                                LoadedGroup::Base& base, Executor& executor) {
  CalibrationConsumer consumer;
  consumer.name = name;
  consumer.model.model = base.model;
  consumer.weights = ConsumerWeightsDigest(base.source->WeightsDigest(executor.threads()),
                                           opened.adapter ? opened.adapter->digest : "");
  if (!opened.adapter) return consumer;
  if (base.adapters == nullptr) base.adapters = std::make_unique<AdapterSet>(base.model);
  consumer.model.adapters = base.adapters.get();
  BATON_ASSIGN_OR_RETURN(consumer.model.adapter, base.adapters->Add(*opened.adapter, executor));
  return consumer;
}

}  // namespace

absl::StatusOr<LoadedGroup> LoadGroup(const GroupFiles& files, const CalibrationProgress& progress,
                                      Executor& executor) {
  LoadedGroup loaded;
  loaded.store = std::make_unique<WeightStore>();
  BATON_ASSIGN_OR_RETURN(const auto producer, ModelSource::Open(files.producer));
  BATON_ASSIGN_OR_RETURN(loaded.tokenizer, ReadModelTokenizer(*producer));
  std::vector<OpenedConsumer> opened;
  for (const ConsumerFiles& consumer : files.consumers) {
    BATON_ASSIGN_OR_RETURN(opened.emplace_back(), OpenConsumer(consumer, loaded));
  }
  CalibrationGroup& group = loaded.group;
  group.tokenizer = loaded.tokenizer->digest();
  group.producer_weights = producer->WeightsDigest(executor.threads());
  BATON_ASSIGN_OR_RETURN(group.producer.model, LoadWeights(*producer, "loading the producer",
                                                           progress, *loaded.store, executor));
  for (LoadedGroup::Base& base : loaded.bases) {
    const std::string stage =
        loaded.bases.size() == 1 ? "loading the consumer" : Cat("loading ", base.path);
    BATON_ASSIGN_OR_RETURN(base.model,
                           LoadWeights(*base.source, stage, progress, *loaded.store, executor));
  }
  for (std::size_t i = 0; i < opened.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(
        group.consumers.emplace_back(),
        AddConsumer(files.consumers[i].name, opened[i], loaded.bases[opened[i].base], executor));
  }
  return loaded;
}

absl::StatusOr<LoadedPair> LoadPair(const PairFiles& files, const CalibrationProgress& progress,
                                    Executor& executor) {
  LoadedPair loaded;
  BATON_ASSIGN_OR_RETURN(
      loaded.models,
      LoadGroup({files.producer, {{.name = "", .model = files.consumer, .adapter = files.adapter}}},
                progress, executor));
  const CalibrationGroup& group = loaded.models.group;
  loaded.pair = {.producer = group.producer,
                 .consumer = group.consumers[0].model,
                 .producer_weights = group.producer_weights,
                 .consumer_weights = group.consumers[0].weights,
                 .tokenizer = group.tokenizer};
  return loaded;
}

absl::StatusOr<std::optional<ChatTemplate>> ChatOf(const LoadedGroup& loaded,
                                                   const std::string& name) {
  std::optional<ChatTemplate> chat;
  if (name == "none") return chat;
  if (!name.empty()) {
    BATON_ASSIGN_OR_RETURN(chat, ChatTemplate::ByName(name));
    return chat;
  }
  const LoadedGroup::Base& first = loaded.bases.front();
  for (const LoadedGroup::Base& base : loaded.bases) {
    if (base.source->chat_template() != first.source->chat_template()) {
      return absl::InvalidArgumentError(Cat("chat template: ", first.path, " and ", base.path,
                                            " have different ones; name the one to use"));
    }
  }
  if (const auto& text = first.source->chat_template()) {
    BATON_ASSIGN_OR_RETURN(chat, ChatTemplate::Recognise(*text));
  }
  return chat;
}

}  // namespace baton::tools
