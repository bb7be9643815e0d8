#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/model_weights.h"

namespace baton {
namespace {

// Where a module's output lies in its (fused) linear.
struct Slot {
  const char* module;
  std::int64_t column;
  std::int64_t out;
};

absl::Status CheckModule(const LoraModule& m, std::int64_t in, std::int64_t out,
                         const std::string& where) {
  const bool sizes_ok = m.rank > 0 && m.a.size() == static_cast<std::size_t>(m.rank * m.in) &&
                        m.b.size() == static_cast<std::size_t>(m.out * m.rank);
  if (m.in != in || m.out != out || !sizes_ok) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": rank ", m.rank, ", [", m.out, ", ", m.in, "] with ", m.a.size(),
                     " and ", m.b.size(), " values; the model's matrix is [", out, ", ", in, "]"));
  }
  return absl::OkStatus();
}

// Joins the A matrices of modules that read the same input of width `in`.
absl::StatusOr<LoraDelta> PackDelta(const LoraLayer& layer, const std::vector<Slot>& slots,
                                    std::int64_t in, const std::string& where, Executor& executor) {
  LoraDelta delta;
  std::vector<float> a;
  for (const Slot& slot : slots) {
    const auto it = layer.find(slot.module);
    if (it == layer.end()) continue;
    const LoraModule& m = it->second;
    BATON_RETURN_IF_ERROR(CheckModule(m, in, slot.out, absl::StrCat(where, slot.module)));
    std::vector<float> b = m.b;
    for (float& x : b) x *= m.scale;
    delta.parts.push_back(
        {.a_row = static_cast<std::int64_t>(a.size()) / in,
         .column = slot.column,
         .b = PackedMatrix::Pack(b.data(), m.out, m.rank, WeightFormat::kF32, executor)});
    a.insert(a.end(), m.a.begin(), m.a.end());
  }
  if (!a.empty()) {
    delta.a = PackedMatrix::Pack(a.data(), static_cast<std::int64_t>(a.size()) / in, in,
                                 WeightFormat::kF32, executor);
  }
  return delta;
}

absl::Status CheckNames(const LoraLayer& layer, const std::string& where) {
  static constexpr const char* kModules[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                             "gate_proj", "up_proj", "down_proj"};
  for (const auto& [name, module] : layer) {
    if (std::find(std::begin(kModules), std::end(kModules), name) == std::end(kModules)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, name, ": not a linear layer that takes an adapter"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

AdapterSet::AdapterSet(std::shared_ptr<const Model> model) : model_(std::move(model)) {}
AdapterSet::~AdapterSet() = default;

int AdapterSet::size() const { return static_cast<int>(adapters_.size()); }
const std::string& AdapterSet::digest(int index) const { return adapters_[index]->digest; }
const AdapterSet::Packed& AdapterSet::packed(int index) const { return *adapters_[index]; }

absl::StatusOr<int> AdapterSet::Add(const LoraAdapter& adapter, Executor& executor) {
  const Model::Weights& w = model_->weights();
  const ModelConfig& c = w.config;
  if (static_cast<std::int64_t>(adapter.layers.size()) != c.layers) {
    return absl::InvalidArgumentError(absl::StrCat("adapter ", adapter.name, ": ",
                                                   adapter.layers.size(), " layers, the model has ",
                                                   c.layers));
  }
  auto packed = std::make_unique<Packed>();
  packed->digest = adapter.digest;
  packed->layers.resize(adapter.layers.size());
  for (std::size_t i = 0; i < adapter.layers.size(); ++i) {
    const LoraLayer& layer = adapter.layers[i];
    Packed::Layer& out = packed->layers[i];
    const std::string where = absl::StrCat("adapter ", adapter.name, ", layer ", i, ", ");
    BATON_RETURN_IF_ERROR(CheckNames(layer, where));
    BATON_ASSIGN_OR_RETURN(out.qkv, PackDelta(layer,
                                              {{"q_proj", 0, w.q_dim()},
                                               {"k_proj", w.q_dim(), w.kv_dim()},
                                               {"v_proj", w.q_dim() + w.kv_dim(), w.kv_dim()}},
                                              c.hidden, where, executor));
    BATON_ASSIGN_OR_RETURN(out.o,
                           PackDelta(layer, {{"o_proj", 0, c.hidden}}, w.q_dim(), where, executor));
    BATON_ASSIGN_OR_RETURN(out.gate_up,
                           PackDelta(layer, {{"gate_proj", 0, c.ffn}, {"up_proj", c.ffn, c.ffn}},
                                     c.hidden, where, executor));
    BATON_ASSIGN_OR_RETURN(out.down,
                           PackDelta(layer, {{"down_proj", 0, c.hidden}}, c.ffn, where, executor));
  }
  adapters_.push_back(std::move(packed));
  return size() - 1;
}

}  // namespace baton
