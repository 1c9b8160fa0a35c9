"""The tilers of the papers: SoyBean, Spartan and EinDecomp."""
