from skipwise.model.four_bit import hold_warnings

hold_warnings()  # before a module of this package imports peft, and with it bitsandbytes
