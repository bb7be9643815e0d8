// One table per config section: parsing, defaults, limits, help text, the printed effective
// configuration and the reference page all come from it.
//
//   struct EngineConfig { int max_batch = 64; std::chrono::milliseconds patience{250}; };
//
//   Section<EngineConfig> EngineSection() {
//     Section<EngineConfig> s("Batching and scheduling.");
//     s.Int("max_batch", &EngineConfig::max_batch).Range(1, 4096).Help("Sequences per step.");
//     s.Duration("patience", &EngineConfig::patience).Help("...").Example("250ms").Reloadable();
//     return s;
//   }
//   struct NodeConfig { LogConfig log; EngineConfig engine; std::vector<ModelConfig> models; };
//   Section<NodeConfig> s("A decode node.");
//   s.Sub("log", &NodeConfig::log, LogSection());
//   s.List("models", &NodeConfig::models, ModelSection()).Items(1, 64).Help("...");
//   s.Check([](const NodeConfig& c) { return ...; });       // across fields
//
// The default of a field is its member initialiser, so that a struct made in code and one read from
// an empty file are the same. Members may be
// std::optional: then "auto" and null both mean "not set". Null in any other field means "not set,
// use the default". load.h reads files by such a table. A finished section is immutable and may be
// shared between threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace baton::config {

enum class FieldType {
  kBool,
  kInt,
  kDouble,
  kString,
  kEnum,
  kDuration,
  kBytes,
  kStringList,
  kSection,
  kSectionList
};

// Durations are nanoseconds in int64, bytes int64, enums their name. monostate: not set.
using FieldValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>>;

struct SectionSpec;

// Type-erased field. Written by the builders below, read by load.cc and print.cc.
struct FieldSpec {
  std::string key;
  FieldType type = FieldType::kString;
  std::string help;
  std::string example;
  std::string env;          // variable that overrides this field; empty: none
  bool expand_env = false;  // ${NAME} in the value is replaced
  bool reloadable = false;
  bool required = false;
  bool optional = false;                                  // "auto"/null = not set
  bool secret = false;                                    // printed as ********
  bool port = false;                                      // only for the reference page
  int64_t int_min = std::numeric_limits<int64_t>::min();  // kInt, kDuration (ns), kBytes
  int64_t int_max = std::numeric_limits<int64_t>::max();
  double double_min = -std::numeric_limits<double>::infinity();
  double double_max = std::numeric_limits<double>::infinity();
  bool min_exclusive = false;  // kDouble: (min, max]
  int64_t unit_ns = 1;         // kDuration: the member's resolution
  size_t min_size = 0;         // kString: bytes; lists: items
  size_t max_size = std::numeric_limits<size_t>::max();
  std::vector<std::string> enum_names;
  std::function<absl::Status(const std::string&)> check;  // kString and items of kStringList

  std::function<void(void* object, const FieldValue& value)> set;
  std::function<FieldValue(const void* object)> get;

  // kSection, kSectionList
  std::shared_ptr<const SectionSpec> section;
  std::function<void*(void* object)> sub;
  std::function<void(void* to, const void* from)> copy;
  std::function<void(void* object)> clear;
  std::function<void*(void* object)> append;
  std::function<size_t(const void* object)> size;
  std::function<const void*(const void* object, size_t index)> at;
  std::function<void*(void* object, size_t index)> mutable_at;
};

struct SectionSpec {
  std::string help;
  std::shared_ptr<const void> defaults;  // a default-constructed object
  std::deque<FieldSpec> fields;
  std::vector<std::function<absl::Status(const void* object)>> checks;
};

namespace schema_internal {
template <typename M>
struct Unwrap {
  using Type = M;
  static constexpr bool kOptional = false;
};
template <typename V>
struct Unwrap<std::optional<V>> {
  using Type = V;
  static constexpr bool kOptional = true;
};
}  // namespace schema_internal

// Name and enumerator of each value of an enum member (or of a std::optional of one).
template <typename M>
using EnumNames = std::vector<std::pair<std::string, typename schema_internal::Unwrap<M>::Type>>;

// What every field can say. `D` is the concrete builder.
template <typename D>
class FieldBuilder {
 public:
  explicit FieldBuilder(FieldSpec* spec) : spec_(spec) {}
  D& Help(std::string text) {
    spec_->help = std::move(text);
    return self();
  }
  D& Example(std::string text) {
    spec_->example = std::move(text);
    return self();
  }
  // The value in this environment variable wins over the file (and loses to --set).
  D& Env(std::string name) {
    spec_->env = std::move(name);
    return self();
  }
  // May change at SIGHUP without a restart.
  D& Reloadable() {
    spec_->reloadable = true;
    return self();
  }
  D& Required() {
    spec_->required = true;
    return self();
  }
  D& Secret() {
    spec_->secret = true;
    return self();
  }

 protected:
  D& self() { return static_cast<D&>(*this); }
  FieldSpec* spec_;
};

class PlainField : public FieldBuilder<PlainField> {
 public:
  using FieldBuilder::FieldBuilder;
};

// Integers, durations (limits in nanoseconds through the typed overload) and bytes.
class IntField : public FieldBuilder<IntField> {
 public:
  using FieldBuilder::FieldBuilder;
  IntField& Range(int64_t min, int64_t max) {
    spec_->int_min = min;
    spec_->int_max = max;
    return *this;
  }
};

class DurationField : public FieldBuilder<DurationField> {
 public:
  using FieldBuilder::FieldBuilder;
  DurationField& Range(std::chrono::nanoseconds min, std::chrono::nanoseconds max) {
    spec_->int_min = min.count();
    spec_->int_max = max.count();
    return *this;
  }
};

class DoubleField : public FieldBuilder<DoubleField> {
 public:
  using FieldBuilder::FieldBuilder;
  // [min, max]
  DoubleField& Range(double min, double max) {
    spec_->double_min = min;
    spec_->double_max = max;
    return *this;
  }
  // (min, max]
  DoubleField& RangeAbove(double min, double max) {
    spec_->min_exclusive = true;
    return Range(min, max);
  }
};

class StringField : public FieldBuilder<StringField> {
 public:
  using FieldBuilder::FieldBuilder;
  StringField& Size(size_t min_bytes, size_t max_bytes) {
    spec_->min_size = min_bytes;
    spec_->max_size = max_bytes;
    return *this;
  }
  StringField& NotEmpty() {
    spec_->min_size = 1;
    return *this;
  }
  // ${NAME} is replaced by the environment; an unset variable is an error.
  StringField& ExpandEnv() {
    spec_->expand_env = true;
    return *this;
  }
  StringField& Check(std::function<absl::Status(const std::string&)> check) {
    spec_->check = std::move(check);
    return *this;
  }
};

class ListField : public FieldBuilder<ListField> {
 public:
  using FieldBuilder::FieldBuilder;
  ListField& Items(size_t min, size_t max) {
    spec_->min_size = min;
    spec_->max_size = max;
    return *this;
  }
  ListField& ExpandEnv() {
    spec_->expand_env = true;
    return *this;
  }
  // Each item of a list of strings.
  ListField& CheckItem(std::function<absl::Status(const std::string&)> check) {
    spec_->check = std::move(check);
    return *this;
  }
};

template <typename T>
class Section {
 public:
  explicit Section(std::string help = "") : spec_(std::make_shared<SectionSpec>()) {
    spec_->help = std::move(help);
    spec_->defaults = std::make_shared<const T>();
  }

  template <typename M>
  PlainField Bool(std::string key, M T::*member) {
    return PlainField(Scalar<bool>(FieldType::kBool, std::move(key), member));
  }
  // Any integer member; the limits start as those of its type.
  template <typename M>
  IntField Int(std::string key, M T::*member);
  // 0 (pick a free one) to 65535.
  template <typename M>
  IntField Port(std::string key, M T::*member) {
    IntField field = Int(std::move(key), member);
    spec_->fields.back().port = true;
    return field.Range(0, 65535);
  }
  template <typename M>
  DoubleField Double(std::string key, M T::*member) {
    return DoubleField(Scalar<double>(FieldType::kDouble, std::move(key), member));
  }
  // A share of one: 0 to 1.
  template <typename M>
  DoubleField Fraction(std::string key, M T::*member) {
    return Double(std::move(key), member).Range(0.0, 1.0);
  }
  template <typename M>
  StringField String(std::string key, M T::*member) {
    return StringField(Scalar<std::string>(FieldType::kString, std::move(key), member));
  }
  // Names and enumerators; `off` needs no quotes in the file.
  template <typename M>
  PlainField Enum(std::string key, M T::*member, EnumNames<M> names);
  // Any std::chrono::duration of integers; a value finer than its unit is an error.
  template <typename M>
  DurationField Duration(std::string key, M T::*member);
  // Any integer member.
  template <typename M>
  IntField Bytes(std::string key, M T::*member) {
    IntField field = Int(std::move(key), member);
    FieldSpec& spec = spec_->fields.back();
    spec.type = FieldType::kBytes;
    if (spec.int_min < 0) spec.int_min = 0;
    return field;
  }
  ListField StringList(std::string key, std::vector<std::string> T::*member) {
    return ListField(
        Scalar<std::vector<std::string>>(FieldType::kStringList, std::move(key), member));
  }
  template <typename S>
  PlainField Sub(std::string key, S T::*member, const Section<S>& section);
  template <typename S>
  ListField List(std::string key, std::vector<S> T::*member, const Section<S>& section);

  // Runs when every field of the section parsed; the message should begin with the key it means.
  void Check(std::function<absl::Status(const T&)> check) {
    spec_->checks.push_back(
        [check = std::move(check)](const void* o) { return check(*static_cast<const T*>(o)); });
  }

  const std::shared_ptr<SectionSpec>& spec() const { return spec_; }

 private:
  FieldSpec& Add(FieldType type, std::string key) {
    FieldSpec& spec = spec_->fields.emplace_back();
    spec.type = type;
    spec.key = std::move(key);
    return spec;
  }

  // A member of type V or optional<V>, stored as W in FieldValue.
  template <typename W, typename M>
  FieldSpec* Scalar(FieldType type, std::string key, M T::*member);

  std::shared_ptr<SectionSpec> spec_;
};

// ---- implementation of the templates ----

template <typename T>
template <typename W, typename M>
FieldSpec* Section<T>::Scalar(FieldType type, std::string key, M T::*member) {
  using U = schema_internal::Unwrap<M>;
  using V = typename U::Type;
  FieldSpec& spec = Add(type, std::move(key));
  spec.optional = U::kOptional;
  spec.set = [member](void* object, const FieldValue& value) {
    M& target = static_cast<T*>(object)->*member;
    if (const W* w = std::get_if<W>(&value)) {
      target = static_cast<V>(*w);
    } else if constexpr (U::kOptional) {
      target = std::nullopt;
    }
  };
  spec.get = [member](const void* object) -> FieldValue {
    const M& source = static_cast<const T*>(object)->*member;
    if constexpr (U::kOptional) {
      return source ? FieldValue(static_cast<W>(*source)) : FieldValue();
    } else {
      return FieldValue(static_cast<W>(source));
    }
  };
  return &spec;
}

template <typename T>
template <typename M>
IntField Section<T>::Int(std::string key, M T::*member) {
  using V = typename schema_internal::Unwrap<M>::Type;
  static_assert(std::is_integral_v<V> && !std::is_same_v<V, bool>);
  FieldSpec* spec = Scalar<int64_t>(FieldType::kInt, std::move(key), member);
  spec->int_min = static_cast<int64_t>(std::numeric_limits<V>::min());
  if constexpr (sizeof(V) < sizeof(int64_t) || std::is_signed_v<V>) {
    spec->int_max = static_cast<int64_t>(std::numeric_limits<V>::max());
  }
  return IntField(spec);
}

template <typename T>
template <typename M>
PlainField Section<T>::Enum(std::string key, M T::*member, EnumNames<M> names) {
  using U = schema_internal::Unwrap<M>;
  FieldSpec& spec = Add(FieldType::kEnum, std::move(key));
  spec.optional = U::kOptional;
  for (const auto& [name, unused] : names) spec.enum_names.push_back(name);
  spec.set = [member, names](void* object, const FieldValue& value) {
    M& target = static_cast<T*>(object)->*member;
    if (const auto* text = std::get_if<std::string>(&value)) {
      for (const auto& [name, enumerator] : names) {
        if (name == *text) target = enumerator;
      }
    } else if constexpr (U::kOptional) {
      target = std::nullopt;
    }
  };
  spec.get = [member, names](const void* object) -> FieldValue {
    const M& source = static_cast<const T*>(object)->*member;
    if constexpr (U::kOptional) {
      if (!source) return FieldValue();
    }
    for (const auto& [name, enumerator] : names) {
      if (source == enumerator) return FieldValue(name);
    }
    return FieldValue();
  };
  return PlainField(&spec);
}

template <typename T>
template <typename M>
DurationField Section<T>::Duration(std::string key, M T::*member) {
  using U = schema_internal::Unwrap<M>;
  using V = typename U::Type;
  static_assert(std::is_integral_v<typename V::rep>);
  FieldSpec& spec = Add(FieldType::kDuration, std::move(key));
  spec.optional = U::kOptional;
  spec.int_min = 0;
  spec.unit_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(V(1)).count();
  spec.set = [member](void* object, const FieldValue& value) {
    M& target = static_cast<T*>(object)->*member;
    if (const int64_t* ns = std::get_if<int64_t>(&value)) {
      target = std::chrono::duration_cast<V>(std::chrono::nanoseconds(*ns));
    } else if constexpr (U::kOptional) {
      target = std::nullopt;
    }
  };
  spec.get = [member](const void* object) -> FieldValue {
    const M& source = static_cast<const T*>(object)->*member;
    const auto ns = [](V v) {
      return FieldValue(int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(v).count()});
    };
    if constexpr (U::kOptional) {
      return source ? ns(*source) : FieldValue();
    } else {
      return ns(source);
    }
  };
  return DurationField(&spec);
}

template <typename T>
template <typename S>
PlainField Section<T>::Sub(std::string key, S T::*member, const Section<S>& section) {
  FieldSpec& spec = Add(FieldType::kSection, std::move(key));
  spec.section = section.spec();
  spec.sub = [member](void* object) -> void* { return &(static_cast<T*>(object)->*member); };
  spec.at = [member](const void* object, size_t) -> const void* {
    return &(static_cast<const T*>(object)->*member);
  };
  return PlainField(&spec);
}

template <typename T>
template <typename S>
ListField Section<T>::List(std::string key, std::vector<S> T::*member, const Section<S>& section) {
  FieldSpec& spec = Add(FieldType::kSectionList, std::move(key));
  spec.section = section.spec();
  spec.copy = [member](void* to, const void* from) {
    static_cast<T*>(to)->*member = static_cast<const T*>(from)->*member;
  };
  spec.clear = [member](void* object) { (static_cast<T*>(object)->*member).clear(); };
  spec.append = [member](void* object) -> void* {
    return &(static_cast<T*>(object)->*member).emplace_back();
  };
  spec.size = [member](const void* object) {
    return (static_cast<const T*>(object)->*member).size();
  };
  spec.at = [member](const void* object, size_t i) -> const void* {
    return &(static_cast<const T*>(object)->*member)[i];
  };
  spec.mutable_at = [member](void* object, size_t i) -> void* {
    return &(static_cast<T*>(object)->*member)[i];
  };
  return ListField(&spec);
}

}  // namespace baton::config
