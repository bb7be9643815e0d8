// Early returns for absl::Status and absl::StatusOr.
//
//   BATON_RETURN_IF_ERROR(file.Check());
//   BATON_ASSIGN_OR_RETURN(auto weights, LoadWeights(path));
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define BATON_CONCAT_INNER(a, b) a##b
#define BATON_CONCAT(a, b) BATON_CONCAT_INNER(a, b)

#define BATON_RETURN_IF_ERROR(expr)                     \
  do {                                                  \
    if (absl::Status status_ = (expr); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

#define BATON_ASSIGN_OR_RETURN(lhs, expr) \
  BATON_ASSIGN_OR_RETURN_IMPL(BATON_CONCAT(status_or_, __LINE__), lhs, expr)
#define BATON_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) {                                  \
    return std::move(tmp).status();                 \
  }                                                 \
  lhs = *std::move(tmp)
