"""What tests of sparse operators are made of, the library's own and its users'.

`oracle` says what an operator means, in NumPy and dictionaries. `strategies` draws inputs with hypothesis
(the `testing` extra). `invariants` checks laws on functions of NumPy arrays; `adapt` turns operators into
such functions. Import the module that you need; none is imported here.
"""
