// SPDX-License-Identifier: BSL-1.0
// Builds the texts of errors from pieces. One function out of line does the work, so that a message costs its
// caller an array and a call instead of a chain of temporary strings: most of what a compiler would otherwise
// spend on ddpp.
#pragma once

#include <charconv>
#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace ddpp::detail {

template <class T>
concept signed_number = std::signed_integral<T> && !std::same_as<T, char>;
template <class T>
concept unsigned_number = std::unsigned_integral<T> && !std::same_as<T, char> && !std::same_as<T, bool>;

/// Characters that live elsewhere, or a number.
class text_piece {
 public:
  text_piece(std::string_view text) noexcept
      : kind_(kind::characters), data_(text.data()), size_(text.size()) {}
  text_piece(const std::string& text) noexcept : text_piece(std::string_view(text)) {}
  text_piece(const char* text) noexcept : text_piece(std::string_view(text)) {}
  template <signed_number T>
  text_piece(T number) noexcept : kind_(kind::number), number_(number) {}
  template <unsigned_number T>
  text_piece(T number) noexcept : kind_(kind::unsigned_number), number_(static_cast<long long>(number)) {}

  void append_to(std::string& text) const {
    if (kind_ == kind::characters) {
      text.append(data_, size_);
      return;
    }
    char digits[24];
    const auto end = kind_ == kind::number ? std::to_chars(digits, digits + sizeof digits, number_)
                                           : std::to_chars(digits, digits + sizeof digits,
                                                           static_cast<unsigned long long>(number_));
    text.append(digits, end.ptr);
  }

 private:
  enum class kind : unsigned char { characters, number, unsigned_number };
  kind kind_;
  const char* data_ = nullptr;
  std::size_t size_ = 0;
  long long number_ = 0;
};

[[gnu::cold, gnu::noinline]] inline void append(std::string& to, std::initializer_list<text_piece> pieces) {
  for (const text_piece& piece : pieces) piece.append_to(to);
}

[[gnu::cold, gnu::noinline]] inline std::string join(std::initializer_list<text_piece> pieces) {
  std::string text;
  append(text, pieces);
  return text;
}

/// text("rank ", 3, " left") is "rank 3 left".
template <class... Pieces>
std::string text(const Pieces&... pieces) {
  return join({text_piece(pieces)...});
}

template <class... Pieces>
void append_text(std::string& to, const Pieces&... pieces) {
  append(to, {text_piece(pieces)...});
}

}  // namespace ddpp::detail
