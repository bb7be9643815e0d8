#include "common/scd/calibrate/training_checkpoint.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstddef>
#include <filesystem>
#include <utility>

#include "common/base/replace_file.h"
#include "common/base/strings.h"

namespace baton {
namespace {

at::Tensor Doubles(const std::vector<double>& values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble);
}

std::vector<double> Values(const at::Tensor& t) {
  TORCH_CHECK(t.dim() == 1 && t.scalar_type() == at::kDouble, "not a list of numbers");
  return {t.data_ptr<double>(), t.data_ptr<double>() + t.numel()};
}

// Throws c10::Error where the file holds something else.
TrainingState Read(torch::serialize::InputArchive& archive,
                   const std::vector<at::Tensor>& parameters) {
  c10::IValue epochs;
  c10::IValue has_best;
  at::Tensor judged, learned;
  archive.read("epochs", epochs);
  archive.read("has_best", has_best);
  archive.read("judged_kl", judged);
  archive.read("learned_kl", learned);
  TrainingState state{.epochs = static_cast<int>(epochs.toInt()),
                      .judged_kl = Values(judged),
                      .learned_kl = Values(learned)};
  const auto tensor = [&](const std::string& name, const at::Tensor& like) {
    at::Tensor t;
    archive.read(name, t);
    TORCH_CHECK(t.sizes() == like.sizes() && t.scalar_type() == like.scalar_type(),
                "another shape");
    return t;
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    state.parameters.push_back(tensor(Cat("parameter.", i), parameters[i]));
    if (has_best.toBool()) state.best.push_back(tensor(Cat("best.", i), parameters[i]));
  }
  const auto done = static_cast<std::size_t>(state.epochs);
  TORCH_CHECK(
      state.epochs > 0 && state.learned_kl.size() == done && state.judged_kl.size() == done + 1,
      "epochs and figures differ");
  return state;
}

}  // namespace

absl::Status SaveTraining(const std::string& path, const std::string& key,
                          const TrainingState& state, const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  archive.write("key", c10::IValue(key));
  archive.write("epochs", c10::IValue(static_cast<std::int64_t>(state.epochs)));
  archive.write("has_best", c10::IValue(!state.best.empty()));
  archive.write("judged_kl", Doubles(state.judged_kl));
  archive.write("learned_kl", Doubles(state.learned_kl));
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    archive.write(Cat("parameter.", i), state.parameters[i].detach());
  }
  for (std::size_t i = 0; i < state.best.size(); ++i) {
    archive.write(Cat("best.", i), state.best[i].detach());
  }
  torch::serialize::OutputArchive of_optimizer(archive.compilation_unit());
  optimizer.save(of_optimizer);
  archive.write("optimizer", of_optimizer);
  return ReplaceFileWith(path, [&archive](const std::string& part) -> absl::Status {
    try {
      archive.save_to(part);
    } catch (const c10::Error& e) {
      return absl::UnavailableError(Cat(part, ": ", e.what_without_backtrace()));
    }
    return absl::OkStatus();
  });
}

bool LoadTraining(const std::string& path, const std::string& key, TrainingState& state,
                  torch::optim::Optimizer& optimizer) {
  if (!std::filesystem::is_regular_file(path)) return false;
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(path);
    c10::IValue saved;
    archive.read("key", saved);
    if (saved.toStringRef() != key) return false;
    TrainingState read = Read(archive, state.parameters);
    torch::serialize::InputArchive of_optimizer;
    archive.read("optimizer", of_optimizer);
    optimizer.load(of_optimizer);
    state = std::move(read);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace baton
