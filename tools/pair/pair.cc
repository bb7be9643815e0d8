#include "tools/pair/pair.h"

#include <cstdint>
#include <optional>

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

}  // namespace

absl::StatusOr<LoadedPair> LoadPair(const PairFiles& files, const CalibrationProgress& progress,
                                    Executor& executor) {
  LoadedPair loaded;
  loaded.store = std::make_unique<WeightStore>();
  BATON_ASSIGN_OR_RETURN(const auto producer, ModelSource::Open(files.producer));
  BATON_ASSIGN_OR_RETURN(loaded.consumer_source, ModelSource::Open(files.consumer));
  const ModelSource& consumer = *loaded.consumer_source;
  BATON_ASSIGN_OR_RETURN(loaded.tokenizer, ReadModelTokenizer(*producer));
  BATON_ASSIGN_OR_RETURN(const auto consumer_tokenizer, ReadModelTokenizer(consumer));
  if (loaded.tokenizer->digest() != consumer_tokenizer->digest()) {
    return absl::InvalidArgumentError(Cat("tokenizer: the consumer's gives other ids (",
                                          consumer_tokenizer->digest(), ") than the producer's (",
                                          loaded.tokenizer->digest(), ")"));
  }
  std::optional<LoraAdapter> adapter;
  if (!files.adapter.empty()) {
    BATON_ASSIGN_OR_RETURN(adapter,
                           LoadLoraAdapter(files.adapter, files.adapter, consumer.config()));
  }
  CalibrationPair& pair = loaded.pair;
  pair.tokenizer = loaded.tokenizer->digest();
  pair.producer_weights = producer->WeightsDigest(executor.threads());
  pair.consumer_weights = ConsumerWeightsDigest(consumer.WeightsDigest(executor.threads()),
                                                adapter ? adapter->digest : "");
  BATON_ASSIGN_OR_RETURN(pair.producer.model, LoadWeights(*producer, "loading the producer",
                                                          progress, *loaded.store, executor));
  BATON_ASSIGN_OR_RETURN(pair.consumer.model, LoadWeights(consumer, "loading the consumer",
                                                          progress, *loaded.store, executor));
  if (adapter) {
    loaded.adapters = std::make_unique<AdapterSet>(pair.consumer.model);
    pair.consumer.adapters = loaded.adapters.get();
    BATON_ASSIGN_OR_RETURN(pair.consumer.adapter, loaded.adapters->Add(*adapter, executor));
  }
  return loaded;
}

absl::StatusOr<std::optional<ChatTemplate>> ChatOf(const LoadedPair& loaded,
                                                   const std::string& name) {
  std::optional<ChatTemplate> chat;
  if (name == "none") return chat;
  if (!name.empty()) {
    BATON_ASSIGN_OR_RETURN(chat, ChatTemplate::ByName(name));
  } else if (const auto& text = loaded.consumer_source->chat_template()) {
    BATON_ASSIGN_OR_RETURN(chat, ChatTemplate::Recognise(*text));
  }
  return chat;
}

}  // namespace baton::tools
