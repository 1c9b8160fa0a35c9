"""Extended Einstein summation: any join, any associative and commutative reduction."""
