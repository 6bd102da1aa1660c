"""The part of the library that knows no operator: arguments, choice of implementation, launches and builds."""
