// <metal_type_traits> and <metal_limits>.
#pragma once
#include "types.h"

namespace metal {
template <class T, T V> struct integral_constant {
  static constexpr T value = V;
  using value_type = T;
  using type = integral_constant;
  MSL_I constexpr operator T() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> {
  using type = T;
};
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional {
  using type = T;
};
template <class T, class F> struct conditional<false, T, F> {
  using type = F;
};
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class... B> struct _disjunction : bool_constant<(B::value || ...)> {};
template <class... B> struct _conjunction : bool_constant<(B::value && ...)> {};
template <class... B> struct disjunction : bool_constant<(B::value || ...)> {};
template <class... B> struct conjunction : bool_constant<(B::value && ...)> {};
template <class T> struct remove_reference {
  using type = T;
};
template <class T> struct remove_reference<T&> {
  using type = T;
};
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_cv {
  using type = __remove_cv(T);
};
template <class T> using remove_cv_t = __remove_cv(T);
template <class T> struct remove_addrspace {
  using type = T;
};
template <class T> using remove_addrspace_t = typename remove_addrspace<T>::type;
template <class T> using _u = remove_cv_t<remove_addrspace_t<T>>;
template <class T> inline constexpr bool _isf =
    is_same_v<_u<T>, float> || is_same_v<_u<T>, half> || is_same_v<_u<T>, bfloat>;
template <class T> struct is_floating_point : bool_constant<_isf<T>> {};
template <class T> inline constexpr bool is_floating_point_v = _isf<T>;
template <class T> struct is_integral : bool_constant<__is_integral(_u<T>)> {};
template <class T> inline constexpr bool is_integral_v = __is_integral(_u<T>);
template <class T> struct is_arithmetic : bool_constant<is_integral_v<T> || _isf<T>> {};
template <class T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> struct is_signed : bool_constant<_isf<T> || __is_signed(_u<T>)> {};
template <class T> inline constexpr bool is_signed_v = is_signed<T>::value;
template <class T> struct is_unsigned : bool_constant<__is_unsigned(_u<T>)> {};
template <class T> inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T*> : true_type {};
template <class A, class B> inline constexpr bool is_convertible_v = __is_convertible(A, B);
template <class A, class B> struct is_convertible : bool_constant<__is_convertible(A, B)> {};
template <class T> struct numeric_limits {
  static MSL_I constexpr T max() {
    if constexpr (is_same_v<T, float>) return FLT_MAX;
    else if constexpr (is_same_v<T, half>) return half(65504.f);
    else if constexpr (is_same_v<T, bfloat>) return bfloat(3.38953139e38f);
    else if constexpr (is_same_v<T, bool>) return true;
    else return __is_signed(T) ? T((1UL << (sizeof(T) * 8 - 1)) - 1) : T(~0UL);
  }
  static MSL_I constexpr T lowest() {
    if constexpr (_isf<T>) return T(-float(max()));
    else return min();
  }
  static MSL_I constexpr T min() {
    if constexpr (_isf<T>) return T(is_same_v<T, half> ? 6.103515625e-05f : 1.17549435e-38f);
    else return __is_signed(T) ? T(1UL << (sizeof(T) * 8 - 1)) : T(0);
  }
  static MSL_I constexpr T infinity() { return T(__builtin_inff()); }
  static MSL_I constexpr T quiet_NaN() { return T(__builtin_nanf("")); }
  static MSL_I constexpr T epsilon() {
    return T(is_same_v<T, float> ? 1.1920929e-7f : is_same_v<T, half> ? 9.765625e-4f : 7.8125e-3f);
  }
};
template <class T, class U> MSL_I constexpr T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type size");
  return __builtin_bit_cast(T, u);
}

} // namespace metal
